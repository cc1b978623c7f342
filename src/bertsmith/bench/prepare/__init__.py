"""`bertsmith bench prepare`: our preparation of text beside that of others."""
