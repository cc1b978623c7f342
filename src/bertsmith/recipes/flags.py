"""Dataclasses read from command-line flags by tyro, with a BertsmithError if a flag is wrong.

tyro is imported when flags are read, so that a recipe made in Python can be trained where it is not installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from bertsmith.base.errors import BertsmithError, nearest

T = TypeVar("T")
U = TypeVar("U")
_HELP = ("-h", "--help")
# How Python's errors about numbers end, of which tyro lists one for each type that a flag may have.
_NO_NUMBERS = {
    "invalid literal for int() with base 10: ": "a whole number",
    "could not convert string to float: ": "a number",
}


def leaves(kind: Any, prefix: str = "", extras: bool = False) -> Iterator[tuple[str, Any]]:
    """Every field of a dataclass and of those inside it as (dotted name, type): ("phase1.steps", int). extras: types as
    they are annotated."""
    hints = typing.get_type_hints(kind, include_extras=extras)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{field.name}.", extras)
        else:
            yield prefix + field.name, hint


def flag(name: str) -> str:
    """The flag of a dotted field name: phase1.global_batch is --phase1.global-batch."""
    return "--" + name.replace("_", "-")


def named_by(token: str) -> str:
    """The dotted field name of a flag such as --phase1.global-batch=64; "" if the token is not a flag."""
    return token[2:].split("=", 1)[0].replace("-", "_") if token.startswith("--") else ""


def split_flags(args: Sequence[str], kind: type[Any]) -> tuple[dict[str, str], list[str]]:
    """Takes the flags of a dataclass's one-valued fields out of `args`: ({dotted name: text}, the other arguments in
    order).

    A field that is True or False needs no value: --FIELD is true, --no-FIELD false, and so are --FIELD true and
    --FIELD=false. The last of several equal flags counts. BertsmithError if another flag has no value after it.
    """
    types = dict(leaves(kind))
    opposites = {_opposite(name): name for name, hint in types.items() if hint is bool}
    taken: dict[str, str] = {}
    rest: list[str] = []
    left = list(reversed(args))
    while left:
        token = left.pop()
        name = named_by(token)
        if name in opposites and "=" not in token:
            taken[opposites[name]] = "false"
        elif name not in types:
            rest.append(token)
        elif "=" in token:
            taken[name] = token.split("=", 1)[1]
        elif types[name] is bool:
            taken[name] = left.pop() if left and left[-1].lower() in ("true", "false") else "true"
        elif not left or named_by(left[-1]):
            raise BertsmithError(f"{flag(name)} has no value", token, f"write {flag(name)} VALUE")
        else:
            taken[name] = left.pop()
    return taken, rest


def _opposite(name: str) -> str:
    """The field name of the flag that sets a field to False."""
    parent, _, last = name.rpartition(".")
    return f"{parent}.no_{last}" if parent else f"no_{last}"


def wants_help(args: Sequence[str]) -> bool:
    """Whether the user asks for help."""
    return any(token in _HELP for token in args)


def parse_flags(
    kind: type[T], args: Sequence[str], *, prog: str, description: str = "", switches_have_values: bool = False
) -> T:
    """Reads `kind` from `args`; with --help prints help and raises SystemExit(0).

    switches_have_values: a field that is True or False is --FIELD=True, and not --FIELD or --no-FIELD.
    Raises BertsmithError for an unknown flag (with the nearest one), a missing or a wrong value.
    """
    import tyro

    config = (tyro.conf.FlagConversionOff,) if switches_have_values else ()
    return _parse(kind, args, partial(tyro.cli, prog=prog, description=description, config=config), _flag_names(kind))


def parse_two(own: type[T], settings: U, args: Sequence[str], *, prog: str, description: str = "") -> tuple[T, U]:
    """Reads two dataclasses from the same flags; the defaults of the second come from `settings`.

    Raises BertsmithError as `parse_flags` does.
    """
    import tyro

    kind = type(settings)
    unprefixed = tyro.conf.arg(name="")
    fields: list[Any] = [
        ("own", Annotated[own, unprefixed]),
        ("settings", Annotated[kind, unprefixed], dataclasses.field(default_factory=lambda: settings)),
    ]
    joined: Any = dataclasses.make_dataclass("Flags", fields)
    cli = partial(tyro.cli, prog=prog, description=description)
    parsed = _parse(joined, args, cli, {*_flag_names(own), *_flag_names(kind)})
    return parsed.own, parsed.settings


def _parse(kind: type[T], args: Sequence[str], cli: partial[Any], known: Iterable[str]) -> T:
    prog = cli.keywords["prog"]

    def read() -> T:
        parsed: T = cli(kind, args=list(args))
        return parsed

    if wants_help(args):
        return read()
    _refuse_unknown(set(known), args, prog)
    # tyro formats for the terminal that it finds; in UTF-8 and without colours its message can be parsed.
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return read()
    except SystemExit:
        output.seek(0)
        raise BertsmithError(_plain(output.read()), prog, f"see {prog} --help") from None


def _refuse_unknown(known: set[str], args: Sequence[str], prog: str) -> None:
    for token in args:
        name = named_by(token)
        if name and name not in known:
            what = f"there is no flag {token.split('=', 1)[0]}"
            raise BertsmithError(what, prog, nearest(flag(name), [flag(each) for each in known]))


def _flag_names(kind: type[Any]) -> Iterator[str]:
    """Of all fields, and of the opposites of those that have one."""
    import tyro

    for name, hint in leaves(kind, extras=True):
        yield name
        plain, *marks = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        if plain is bool and tyro.conf.FlagCreatePairsOff not in marks:
            yield _opposite(name)


def _plain(box: str) -> str:
    """The first paragraph of tyro's boxed message, as one sentence; for missing arguments only their names."""
    body = [line[2:].rstrip(" │") for line in box.splitlines() if line.startswith("│")]
    rule = next((number for number, line in enumerate(body) if line and set(line) == {"─"}), len(body))
    body = body[:rule]
    if body and body[0].startswith("Missing from"):
        named = [line.strip() for line in body[1:] if len(line) - len(line.lstrip()) == 4]
        return f"missing: {', '.join(named)}"
    text = " ".join(line.strip() for line in body).rstrip(".")
    wrong, _, rest = text.removeprefix("Error parsing ").partition(": ")
    for words, kind in _NO_NUMBERS.items():
        value = rest.rpartition(words)[2]
        if words in rest and "choices" not in rest.replace("choices ('None',)", ""):
            return f"{wrong} is {value}, which is not {kind}"
    return re.sub(r"'None', |, 'None'", "", text)  # a flag that may be left out is one to tyro that may be None
