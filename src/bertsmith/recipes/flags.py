"""Dataclasses read from command-line flags by tyro, with a BertsmithError if a flag is wrong.

tyro is imported when flags are read, so that a recipe made in Python can be trained where it is not installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar

from bertsmith.base.errors import TOO_LARGE, BertsmithError, is_too_large, nearest

T = TypeVar("T")
U = TypeVar("U")
_HELP = ("-h", "--help")
# The type of an argument without a flag, and what to do about a flag in front of it.
_ALONE = "write its value alone, without a flag"
_NUMBERS = {int: "a whole number", float: "a number"}
# By the names of transformers' and NVIDIA's scripts, and of our other verbs.
_NAMED_ELSEWHERE = {
    "bert_model": "model",
    "cased": "no_lowercase",
    "label_column_name": "columns.label",
    "max_seq_length": "max_length",
    "model_name_or_path": "model",
    "no_lowercase": "cased",
    "num_train_epochs": "epochs",
    "output_dir": "out",
    "per_device_train_batch_size": "batch",
    "size": "vocabulary_size",
    "test_file": "test",
    "text_column_name": "columns.text",
    "tokenizer": "vocab",
    "train_batch_size": "batch",
    "train_file": "train",
    "validation_file": "dev",
    "vocab": "tokenizer",
    "vocabulary_size": "size",
    "warmup_proportion": "warmup",
    "warmup_ratio": "warmup",
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


def value_of(hint: Any, text: str) -> Any:
    """What the text of a recipe's field says. hint: its type. Raises ValueError for a text that is not of it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            with contextlib.suppress(ValueError):
                return value_of(each, text)
        raise ValueError(text)
    words = ("true", "false") if hint is bool else typing.get_args(hint)
    if words and (text.lower() if hint is bool else text) not in words:
        raise ValueError(text)
    if hint is bool:
        return text.lower() == "true"
    return hint(text) if hint in _NUMBERS else text


def parse_flags(
    kind: type[T], args: Sequence[str], *, prog: str, description: str = "", beside: type[Any] | None = None
) -> T:
    """Reads `kind` from `args`; with --help prints help and raises SystemExit(0).

    beside: another dataclass, whose flags were taken out of `args`: what is mistyped may be one of these.
    Raises BertsmithError for an unknown flag (with the nearest one), a missing or a wrong value.
    """
    known = dict(_flag_types(kind)) | dict(_flag_types(beside) if beside else ())
    return _parse(kind, args, known, prog, description)


def parse_two(own: type[T], settings: U, args: Sequence[str], *, prog: str, description: str) -> tuple[T, U]:
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
    parsed = _parse(joined, args, dict(_flag_types(own)) | dict(_flag_types(kind)), prog, description)
    return parsed.own, parsed.settings


def _parse(kind: type[T], args: Sequence[str], known: Mapping[str, Any], prog: str, description: str) -> T:
    """known: the types of all flags, as `_flag_types` has them."""
    import tyro

    read: Callable[[], T] = partial(tyro.cli, kind, prog=prog, description=description, args=list(args))
    if wants_help(args):
        _join_lines(kind)
        return read()
    _refuse_wrong(known, args, prog)
    # tyro formats for the terminal that it finds; in UTF-8 and without colours its message can be parsed. An argument
    # may hold bytes that are none.
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return read()
    except SystemExit:
        output.seek(0)
        raise BertsmithError(_plain(output.read()), prog, f"see {prog} --help") from None


def _join_lines(kind: type[Any]) -> None:
    """Gives tyro the docstring of each field as one paragraph: from the class itself it takes the indented lines of a
    docstring one by one, so that help is broken in the middle of its sentences."""
    import docstring_parser
    import tyro

    hints = typing.get_type_hints(kind, include_extras=True)
    for owner in filter(dataclasses.is_dataclass, kind.__mro__):
        told = docstring_parser.parse_from_object(owner).params
        words = {each.arg_name: " ".join((each.description or "").split()) for each in told}
        for name in vars(owner).get("__annotations__", {}):
            hint: Any = hints[name]
            plain, *marks = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
            if dataclasses.is_dataclass(plain):
                _join_lines(typing.cast("type[Any]", plain))
            elif words.get(name):
                # First, so that what a field's own marks say stands.
                marks = [tyro.conf.arg(help=words[name]), *marks]
                owner.__annotations__[name] = Annotated[(plain, *marks)]


def _refuse_wrong(known: Mapping[str, Any], args: Sequence[str], prog: str) -> None:
    """Raises BertsmithError for a flag that is not known, has no value, or one that is not of its type, and for an
    empty argument other than a flag's value."""
    values_end = 0
    for number, token in enumerate(args):
        name = named_by(token)
        if not name:
            if not token and number >= values_end:
                raise _empty("an argument", prog, "set the variable, or write a value in its place")
            continue
        if known.get(name) in (None, _ALONE):
            what = f"there is no flag {token.split('=', 1)[0]}"
            ours = _NAMED_ELSEWHERE.get(name, name)
            meant = ours if ours in known else name
            there = [each.upper() if hint == _ALONE else flag(each) for each, hint in known.items()]
            fix = _ALONE if known.get(meant) == _ALONE else nearest(flag(meant), there)
            of_groups = [repr(flag(each)) for each in known if each.endswith(f".{name}")]
            if of_groups:  # of both phases, not the nearest
                fix = f"did you mean {' or '.join(of_groups)}?"
            raise BertsmithError(what, prog, fix)
        if known[name] is bool:
            if "=" in token:
                other = f"or {flag(_opposite(name))}" if _opposite(name) in known else "or leave it out"
                raise BertsmithError(f"{flag(name)} takes no value", token, f"write {flag(name)} alone, {other}")
            continue
        values = [*token.split("=", 1)[1:], *takewhile(lambda each: not named_by(each), args[number + 1 :])]
        hint, is_list, may_be_none = _one_value(known[name])
        if not values and not (is_list and may_be_none):  # where no list and an empty one are not the same
            raise BertsmithError(f"{flag(name)} has no value", prog, f"write {flag(name)} VALUE")
        values = values if is_list else values[:1]
        values_end = number + len(values) + ("=" not in token)
        for value in values:
            if not (may_be_none and value == "None"):
                _check_value(flag(name), hint, value, prog)


def _one_value(hint: Any) -> tuple[Any, bool, bool]:
    """The type of one value of a flag, whether it takes several, and whether it may be None."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = [each for each in typing.get_args(hint) if each is not type(None)] if union else [hint]
    one, may_be_none = members[0] if len(members) == 1 else hint, union and len(members) == 1
    is_list = typing.get_origin(one) is tuple
    return (typing.get_args(one)[0] if is_list else one), is_list, may_be_none


def _empty(named: str, prog: str, fix: str) -> BertsmithError:
    return BertsmithError(f"{named} is empty, as where a variable of the shell is not set", prog, fix)


def _check_value(named: str, hint: Any, value: str, prog: str) -> None:
    if not value and (hint is Path or Path in typing.get_args(hint)):  # which would be the present folder
        raise _empty(named, prog, "name a file or a folder; the present folder is .")
    if hint in _NUMBERS:
        try:
            number = hint(value)
        except ValueError:
            what = f"{named} is '{value}', which is not {_NUMBERS[hint]}"
            raise BertsmithError(what, prog, f"see {prog} --help") from None
        if is_too_large(number):
            raise BertsmithError(f"{named} is {value}", prog, TOO_LARGE)
    choices = ("True", "False") if hint is bool else typing.get_args(hint)
    if (hint is bool or typing.get_origin(hint) is typing.Literal) and value not in choices:
        raise BertsmithError(f"{named} is '{value}'", prog, f"use one of: {', '.join(choices)}")


def _flag_types(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The types of all fields, and of the opposites of those that have one; _ALONE for those that have no flag."""
    import tyro

    for name, hint in leaves(kind, extras=True):
        plain, *marks = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        yield name, _ALONE if tyro.conf.Positional in marks else plain
        if plain is bool and tyro.conf.FlagCreatePairsOff not in marks:
            yield _opposite(name), bool


def _plain(box: str) -> str:
    """The first paragraph of tyro's boxed message, as one sentence; for missing arguments only their names."""
    body = [line[2:].rstrip(" │") for line in box.splitlines() if line.startswith("│")]
    rule = next((number for number, line in enumerate(body) if line and set(line) == {"─"}), len(body))
    body = body[:rule]
    if body and body[0].startswith("Missing from"):
        named = [line.strip() for line in body[1:] if len(line) - len(line.lstrip()) == 4]
        return f"missing: {', '.join(named)}"
    # Of tyro's options only arguments without a flag are left here.
    return " ".join(line.strip() for line in body).rstrip(".").replace("Unrecognized options", "unexpected arguments")
