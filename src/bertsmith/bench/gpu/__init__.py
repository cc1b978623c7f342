"""What `make gpu-check` measures: rows in the order of their worth, each kept as soon as it is made."""
