"""The command line: a small file per group of verbs; each verb reads its flags, calls one function and prints.

Standard output is for scripts, such as the path of a finished model; progress and messages go to standard
error. The modules that do the work are imported by the verb that needs them, so that --help is there at once.
"""

from bertsmith.cli.entry import main

__all__ = ["main"]
