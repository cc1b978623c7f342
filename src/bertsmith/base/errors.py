"""One kind of error for everything a user can get wrong: what happened, where, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

EXIT_DONE = 0
EXIT_OUR_BUG = 1
EXIT_USER_INPUT = 2
# As EX_TEMPFAIL of sysexits.h: another rank was lost, and the same command may succeed.
EXIT_RANK_LOST = 75
EXIT_INTERRUPTED = 130
EXIT_STOPPED_AFTER_SAVING = 143

# As PyTorch on a CPU and on a GPU, the system, C++, cuBLAS and oneDNN word it.
_NO_MEMORY = (
    "allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "alloc_failed",
    "could not create a memory",
)


class BertsmithError(Exception):
    """Wrong input, reported in one message without a traceback; the command line exits with status 2.

    what: the fact, as a sentence without a full stop. where: the file, line, key or tensor where it was found.
    fix: what the user can do about it.
    """

    status = EXIT_USER_INPUT

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


class RankLost(BertsmithError):
    """Ranks that do not find each other, or lose each other; the same command may succeed, so it exits with 75."""

    status = EXIT_RANK_LOST


def ran_out_of_memory(error: Exception) -> bool:
    """Whether memory, of a CPU or a GPU, was what this error of PyTorch's lacked."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)


def nearest(word: object, known: Iterable[str]) -> str:
    """A phrase for the `fix` of an error: names the known word that is most like `word`, or lists all known ones."""
    names = sorted(known)
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.5) if isinstance(word, str) else []
    return f"did you mean '{match[0]}'?" if match else f"known are: {', '.join(names)}"
