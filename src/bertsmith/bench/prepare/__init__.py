"""`bertsmith bench prepare`: our preparation of text against that of other libraries."""
