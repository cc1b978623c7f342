"""The command line: a small file per group of verbs; each verb reads its flags, calls one function and prints.

Standard output is for scripts, such as the path of a finished model; progress and messages go to standard
error. The modules that do the work are imported by the verb that needs them, so that --help is there at once.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (default: the process's own) and returns its exit status."""
    try:
        from bertsmith.cli import entry
    except KeyboardInterrupt:  # which `entry` itself reports once it is there
        print("interrupted", file=sys.stderr)
        return 130
    return entry.main(argv)
