"""What is measured, and against whom: every case in a process of its own, over the same text."""
