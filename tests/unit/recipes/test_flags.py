"""Typed flags: what reaches the dataclass, and the one message for what does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

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


@dataclass(frozen=True)
class Wordy(Verb):
    """The whole, and more."""

    size: Annotated[int, tyro.conf.arg(help_behavior_hint="(as many as there are)")] = 1
    """How large, in a sentence that is
    written on two lines."""
    kind: Annotated[str, tyro.conf.arg(help="What stands here counts.")] = ""
    """And not this."""


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
        (["x", "--out", "y", "z"], "unexpected arguments: z", "verb --help"),
        (["x", "--out", "y", "\udcff"], r"unexpected arguments: \udcff", "verb --help"),
        (["x", "--out", "y", "--resume=false"], "--resume takes no value", "write --resume alone, or --no-resume"),
        (
            ["x", "--out", "y", "--no-resume=1"],
            "--no-resume takes no value",
            "write --no-resume alone, or leave it out",
        ),
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
class Typed:
    """Flags of every type."""

    ranks: int | None = None
    size: int = 1
    books: tuple[int, ...] = ()
    shares: Annotated[tuple[float, ...] | None, tyro.conf.arg(help="Several.")] = None
    known: bool | None = None
    pooling: Literal["mean", "cls", "max"] | None = None
    files: tuple[Path, ...] = ()
    data: str | Path | None = None


EMPTY = "is empty, as where a variable of the shell is not set"


def test_a_list_that_may_be_left_out_may_be_empty_too():
    """As in `bench --against`, where nothing is not what is taken by default."""
    assert parse_flags(Typed, ["--shares"], prog="verb").shares == ()
    assert parse_flags(Typed, ["--shares", "--size", "2"], prog="verb").shares == ()
    assert parse_flags(Typed, [], prog="verb").shares is None


@pytest.mark.parametrize(
    ("args", "what", "fix"),
    [
        ("--ranks two", "--ranks is 'two', which is not a whole number", "see verb --help"),
        ("--size two", "--size is 'two', which is not a whole number", "see verb --help"),
        (f"--size {2**63}", f"--size is {2**63}", "use a whole number of at most 64 bits"),
        (f"--books 1 {10**400}", f"--books is {10**400}", "use a whole number of at most 64 bits"),
        ("--size=1.5", "--size is '1.5', which is not a whole number", "see verb --help"),
        ("--books 84 x", "--books is 'x', which is not a whole number", "see verb --help"),
        ("--books=x 84", "--books is 'x', which is not a whole number", "see verb --help"),
        ("--shares 1,2", "--shares is '1,2', which is not a number", "see verb --help"),
        ("--known perhaps", "--known is 'perhaps'", "use one of: True, False"),
        ("--pooling least", "--pooling is 'least'", "use one of: mean, cls, max"),
        ("--size", "--size has no value", "write --size VALUE"),
        ("--size --files a", "--size has no value", "write --size VALUE"),
        ("--files --size 2", "--files has no value", "write --files VALUE"),
        ("--files=", f"--files {EMPTY}", "name a file or a folder; the present folder is ."),
        ("--data=", f"--data {EMPTY}", "name a file or a folder; the present folder is ."),
    ],
)
def test_a_value_of_another_type_is_named_without_the_parser_s_words(args, what, fix):
    with pytest.raises(BertsmithError) as raised:
        parse_flags(Typed, args.split(), prog="verb")
    assert (raised.value.what, raised.value.fix) == (what, fix)


@dataclass(frozen=True)
class Asked(Verb):
    """With texts, which may be empty."""

    text: str = "a text"
    texts: tuple[str, ...] = ()


@pytest.mark.parametrize(
    "args",
    [
        ["", "--out", "o"],
        ["--resume", "", "--out", "o"],
        ["--no-resume", "", "--out", "o"],
        ["--out", "o", ""],
        ["--out=o", ""],
        ["--out", "o", "--text", "", ""],
    ],
    ids=" ".join,
)
def test_an_empty_argument_is_refused_behind_a_switch_too(args):
    with pytest.raises(BertsmithError) as raised:
        parse_flags(Asked, args, prog="verb")
    assert raised.value.what == f"an argument {EMPTY}"
    assert raised.value.fix == "set the variable, or write a value in its place", "which may be no path"


def test_texts_may_be_empty():
    args = ["x", "--out", "o", "--text", "", "--texts", "", "b", ""]
    assert parse_flags(Asked, args, prog="verb") == Asked("x", Path("o"), text="", texts=("", "b", ""))
    args = ["x", "--out", "o", "--text=", "--texts=a", ""]
    assert parse_flags(Asked, args, prog="verb") == Asked("x", Path("o"), text="", texts=("a", ""))


def test_values_of_their_types_are_read():
    args = "--ranks None --size=-2 --books 84 1342 --shares 0.5 1e3 --known True --pooling cls --files a b"
    read = Typed(None, -2, (84, 1342), (0.5, 1000.0), True, "cls", (Path("a"), Path("b")))
    assert parse_flags(Typed, args.split(), prog="verb") == read


def test_help_shows_every_field_with_its_words(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_flags(Verb, ["--help"], prog="verb", description="Example: verb x --out y")
    assert not ended.value.code
    said = capsys.readouterr().out
    assert all(words in said for words in ("Example: verb x", "Where to.", "How fast.", "--inner.learning-rate"))


def test_help_is_wrapped_for_the_terminal_and_not_as_the_source_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for _ in range(2):
        with pytest.raises(SystemExit):
            parse_flags(Wordy, ["--help"], prog="verb")
        said = capsys.readouterr().out
        assert "How large, in a sentence that is written on two lines. (as many as there are)" in said
        assert "What stands here counts." in said
        assert "Where to." in said
        assert "NAME" in said
    assert parse_flags(Wordy, ["x", "--out", "y", "--size", "3"], prog="verb").size == 3


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
