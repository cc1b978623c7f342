"""A page that shows one or several runs: what their folders tell, as tables and curves, in one file."""
