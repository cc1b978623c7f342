"""One kind of error for everything a user can get wrong: what happened, where, and how to fix it; and the check of
options that are given in Python, whose types no parser has looked at."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

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
_UNFIT, _MOST_SHOWN = object(), 80
_LARGEST = 2**63 - 1
TOO_LARGE = "use a whole number of at most 64 bits"
"""The fix for a number that no tensor, file or system call could hold."""
_PLAIN_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    NoneType: "None",
}


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
    """A phrase for the `fix` of an error: names the known word that is most like `word`, or of which it has the
    initials (--lr), or lists all known ones. The dashes before flags make no two of them alike."""
    names = sorted(known)
    plain = {name.removeprefix("--"): name for name in names}
    bare = word.removeprefix("--") if isinstance(word, str) else ""
    by_initials = [name for name in plain if "-" in name and bare == "".join(each[:1] for each in name.split("-"))]
    match = difflib.get_close_matches(bare, plain, n=1, cutoff=0.6) or by_initials
    return f"did you mean '{plain[match[0]]}'?" if match else f"known are: {', '.join(names)}"


def is_too_large(value: object) -> bool:
    """Whether this is a whole number of more than 64 bits."""
    return isinstance(value, int) and abs(value) > _LARGEST


class TypeChecked:
    """Base of dataclasses of options. Raises BertsmithError where one is made with a value that the annotation of its
    field does not allow.

    A whole number may stand for a number, but a bool for neither. Numbers of NumPy are kept as Python's, so that they
    can be written as JSON and YAML; text where a path is wanted as a path, a path where text is wanted as text, and a
    list where a tuple is wanted as a tuple.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in _hints(kind).items():
            value = getattr(self, name)
            found = _fitted(value, hint)
            if found is _UNFIT:
                raise BertsmithError(f"{name} is {_shown(value)}", f"{kind.__name__}, {name}", _fix(value, hint))
            object.__setattr__(self, name, found)  # the dataclass may be a frozen one


def check_class(value: object, kind: type, name: str) -> None:
    """Raises BertsmithError where an argument is neither None nor of its class. name: of the argument."""
    if value is not None and not isinstance(value, kind):
        given = _PLAIN_WORDS.get(kind) or f"a {kind.__module__}.{kind.__name__}"
        what = f"{name} is {_shown(value)}, and not {wanted(kind)}"
        raise BertsmithError(what, name, f"give {given}, or leave it out")


def wanted(hint: Any) -> str:
    """What the annotation of a field allows, in words: "a whole number, or auto"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return ", or ".join(map(wanted, args))
    if origin is Literal:
        return f"one of: {', '.join(args)}" if len(args) > 1 else str(args[0])
    if origin is tuple:
        return f"a list, each item {wanted(args[0])}"
    if origin is Mapping:
        return "a mapping"
    return _PLAIN_WORDS.get(hint) or f"a {hint.__name__}"


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The annotation of every field."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _fitted(value: Any, hint: Any) -> Any:
    """A value as an annotation has it; _UNFIT where it does not allow it."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        fits = (_fitted(value, each) for each in args)
        return next((each for each in fits if each is not _UNFIT), _UNFIT)
    if origin is Literal:
        return next((each for each in args if isinstance(value, type(each)) and value == each), _UNFIT)
    if origin is tuple:
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        items = [_fitted(each, args[0]) for each in value] if is_list else [_UNFIT]
        return _UNFIT if any(each is _UNFIT for each in items) else tuple(items)
    if origin is Mapping:
        pairs = value.items() if isinstance(value, Mapping) else [(_UNFIT, _UNFIT)]
        found = {_fitted(key, args[0]): _fitted(each, args[1]) for key, each in pairs}
        return _UNFIT if any(each is _UNFIT for pair in found.items() for each in pair) else found
    if hint is Path and isinstance(value, str | PurePath):
        return Path(value)
    if hint is str and isinstance(value, PurePath):
        return str(value)
    if hint in (int, float) and (isinstance(value, bool) or is_too_large(value)):
        return _UNFIT
    return value if hint is Any or isinstance(value, (int, float) if hint is float else hint) else _UNFIT


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _fix(value: object, hint: Any) -> str:
    """What may stand there, with the nearest word where words may."""
    if is_too_large(value):
        return TOO_LARGE
    words = [word for each in (hint, *get_args(hint)) if get_origin(each) is Literal for word in get_args(each)]
    close = nearest(value, words) if isinstance(value, str) and words else ""
    return f"use {wanted(hint)}{f'; {close}' if close.endswith('?') else ''}"
