"""Typed flags: what reaches the dataclass, and the one message for what does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import tyro

from bertsmith.base.errors import BertsmithError
from bertsmith.recipes.flags import flag, leaves, named_by, parse_flags, split_flags


@dataclass(frozen=True)
class Inner:
    """The inside."""

    learning_rate: float = 0.1
    """How fast."""


@dataclass(frozen=True)
class Verb:
    """The whole."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Which one."""
    out: Path
    """Where to."""
    resume: bool = False
    """Go on."""
    inner: Inner = field(default_factory=Inner)


def test_every_leaf_is_named_with_its_type():
    assert dict(leaves(Verb))["inner.learning_rate"] is float
    assert [name for name, _ in leaves(Verb)] == ["name", "out", "resume", "inner.learning_rate"]


def test_names_and_flags_are_inverse():
    assert flag("inner.learning_rate") == "--inner.learning-rate"
    assert named_by("--inner.learning-rate=3") == named_by("--inner.learning_rate") == "inner.learning_rate"
    assert named_by("-3") == named_by("value") == ""


def test_flags_reach_their_fields():
    read = parse_flags(Verb, ["x", "--out", "y", "--resume", "--inner.learning_rate", "-2"], prog="verb")
    assert read == Verb("x", Path("y"), resume=True, inner=Inner(-2.0))


@pytest.mark.parametrize(
    ("args", "what", "fix"),
    [
        (["x", "--ot", "y"], "there is no flag --ot", "did you mean '--out'?"),
        ([], "missing: NAME, --out PATH", "verb --help"),
        (["x", "--out", "y", "z"], "Unrecognized options: z", "verb --help"),
        (
            ["x", "--out", "y", "--inner.learning-rate", "fast"],
            "--inner.learning-rate is 'fast', which is not a number",
            "verb --help",
        ),
    ],
)
def test_a_wrong_flag_is_one_message(args, what, fix, capsys):
    with pytest.raises(BertsmithError) as raised:
        parse_flags(Verb, args, prog="verb")
    assert what in raised.value.what
    assert fix in raised.value.fix
    assert capsys.readouterr() == ("", ""), "the message is the error's; nothing else is printed"


@dataclass
class Counted:
    """Flags that may be left out."""

    ranks: int | None = None
    size: int = 1


@pytest.mark.parametrize("name", ["--ranks", "--size"])
def test_a_flag_that_is_no_whole_number_is_named_without_the_parser_s_types(name):
    with pytest.raises(BertsmithError) as raised:
        parse_flags(Counted, [name, "two"], prog="verb")
    assert raised.value.what == f"{name} is 'two', which is not a whole number"


def test_help_shows_every_field_with_its_words(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_flags(Verb, ["--help"], prog="verb", description="Example: verb x --out y")
    assert not ended.value.code
    said = capsys.readouterr().out
    assert all(words in said for words in ("Example: verb x", "Where to.", "How fast.", "--inner.learning-rate"))


def test_splitting_takes_the_flags_of_fields_and_leaves_the_rest_in_order():
    taken, rest = split_flags(["a", "--inner.learning-rate", "1", "--to", "b", "--inner.learning_rate=q=r"], Verb)
    assert taken == {"inner.learning_rate": "q=r"}
    assert rest == ["a", "--to", "b"]


@pytest.mark.parametrize(
    ("args", "value", "left"),
    [
        (["--resume"], "true", []),
        (["--no-resume"], "false", []),
        (["--resume", "false"], "false", []),
        (["--resume", "True", "a"], "True", ["a"]),
        (["--resume", "a.yaml"], "true", ["a.yaml"]),
        (["--resume", "--to", "b"], "true", ["--to", "b"]),
        (["--resume=perhaps"], "perhaps", []),
        (["--resume", "--no-resume"], "false", []),
    ],
    ids=" ".join,
)
def test_a_switch_needs_no_value_and_has_an_opposite(args, value, left):
    assert split_flags(args, Verb) == ({"resume": value}, left)
