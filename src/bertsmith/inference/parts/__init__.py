"""The rows of a file in parts: answered by one process or several, written aside, and joined when all are there."""
