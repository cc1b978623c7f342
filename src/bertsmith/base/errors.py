"""One kind of error for everything a user can get wrong: what happened, where, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

EXIT_DONE = 0
EXIT_OUR_BUG = 1
EXIT_USER_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_STOPPED_AFTER_SAVING = 143


class BertsmithError(Exception):
    """Wrong input, said in one message and without a traceback; the command line ends with status 2.

    what: the fact, as a sentence without its full stop. where: file, line, key or tensor it was found at.
    fix: what the user can do about it.
    """

    def __init__(self, what: str, where: str | Path = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, str(where), fix
        super().__init__(what, self.where, fix)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


def nearest(word: str, known: Iterable[str]) -> str:
    """A phrase that names the known word most like `word`, or lists what there is: for the `fix` of an error."""
    names = sorted(known)
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{match[0]}'?" if match else f"known are: {', '.join(names)}"
