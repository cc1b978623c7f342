"""What a verb of the command line is, and how it reads its flags."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.processes import bound_product_caches
from bertsmith.base.stopping import interrupt_waits
from bertsmith.recipes.flags import flag, parse_flags, parse_two
from bertsmith.recipes.loader import presets

T = TypeVar("T")
Options = TypeVar("Options")
EVERYWHERE = ("--quiet", "--debug")
# The flags of all verbs that name what is written; the first ones name files that are checked here alone.
_FILES = {"json", "submission"}
_WRITTEN = {*_FILES, "dllogger", "out", "png", "report", "skip_bad_rows"}
# Those that name what is read and are no Path: patterns and standard input are named by them too, and presets, which
# are read whatever file has such a name.
_OF_PRESETS = {"recipe", "student"}
_READ = {"input", "source"}
# What folders that are read hold, of a corpus, a run, a model, and where in these it lies.
_HELD = {"config.json", "corpus.json", "events.jsonl", "finetune.json", "metrics.jsonl", "modules.json", "run.json"}
_HELD |= {"pretraining.json", "task.json", "tokenizer.json", "tokenizer_config.json"}
_HELD |= {"model.safetensors", "recipe.yaml", "vocab.txt"}
_WITHIN = ("", "model", "tokenizer")
Either = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
"""A switch whose opposite is a flag too: without both, something else decides, so that neither has a default."""


def either(flags: object, name: str, prog: str, group: str = "") -> bool | None:
    """A switch of these flags, False for its opposite, None without both. Raises BertsmithError where both are given.

    group: of the flag, such as "columns.".
    """
    yes, no = getattr(flags, name), getattr(flags, f"no_{name}")
    if yes and no:
        what = f"--{group}{name} and --{group}no-{name} exclude each other"
        raise BertsmithError(what, prog, "give one of them")
    return yes if yes or no else None


def given_flags(flags: Any, names: Iterable[str]) -> list[str]:
    """Those of these fields of a verb's flags that have another value than their default, as the user writes them."""
    factories = {each.name: each.default_factory for each in fields(flags) if each.default_factory is not MISSING}
    defaults = {each.name: each.default for each in fields(flags)} | {name: make() for name, make in factories.items()}
    return [flag(name) for name in names if getattr(flags, name) != defaults[name]]


def import_torch(new_shapes: bool = False) -> None:
    """For a verb that needs PyTorch, in place of its first import: a Ctrl-C is answered when that has ended, as
    `interrupt_waits` says. new_shapes: of batches, as `bound_product_caches` says."""
    if new_shapes:
        bound_product_caches()
    with interrupt_waits():
        importlib.import_module("torch")


def default_said(words: str) -> Any:
    """Of a flag that is None where it is not given: what its help calls the default."""
    return tyro.conf.arg(help_behavior_hint=f"(default: {words})")


@dataclass(frozen=True)
class Call:
    """A verb as it was called. prog: the verb as the user types it. description: what its help begins with. everywhere:
    the flags that every verb has, and which are not in `args`."""

    prog: str
    description: str
    args: list[str]
    everywhere: tuple[str, ...] = ()

    @property
    def given(self) -> set[str]:
        """The flags that were given, without a value that follows "=", and all other arguments."""
        return {token.partition("=")[0] for token in self.args}

    def read(self, kind: type[T], beside: type[Any] | None = None) -> T:
        """The verb's flags as a dataclass. beside: as `parse_flags` has it."""
        flags = parse_flags(kind, self.args, prog=self.prog, description=self.description, beside=beside)
        _check_written(vars(flags))
        return flags

    def refuse_unread(self, flags: Any, names: Iterable[str], when: str) -> None:
        """Raises BertsmithError where one of these fields was given: nothing reads it in this case. when: such as "with
        --run"."""
        if given := given_flags(flags, names):
            what = f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} not read {when}"
            raise BertsmithError(what, self.prog, f"leave {'it' if len(given) == 1 else 'them'} out")

    def read_with(self, kind: type[T], options: Options) -> tuple[T, Options]:
        """The verb's own flags, and those of the fields of `options`, which hold the defaults."""
        flags, options = parse_two(kind, options, self.args, prog=self.prog, description=self.description)
        _check_written({**vars(options), **vars(flags)})
        return flags, options


def _check_written(flags: Mapping[str, Any]) -> None:
    """Raises BertsmithError where two flags name one place to write to, where one names a file that is read or that a
    folder that is read holds, and where a file cannot be written."""
    given = [(name, each) for name, value in flags.items() for each in (value if isinstance(value, tuple) else [value])]
    paths = [(name, each) for name, each in given if isinstance(each, str | Path) and each != "-"]
    read = [each for name, each in paths if name in _READ or (isinstance(each, Path) and name not in _WRITTEN)]
    read += [each for name, each in paths if name in _OF_PRESETS and str(each) not in presets()]
    places: dict[str, str] = {}
    for name, path in paths:
        if name in _WRITTEN:
            if Path(path) == Path("-"):
                raise BertsmithError(f"{flag(name)} writes to no standard output", "-", "give the name of a file")
            last = Path(path).name
            inside = [Path(each, folder, last) for each in read for folder in _WITHIN if last in _HELD]
            files.check_not_read(path, [*read, *inside])
            other = places.setdefault(os.path.realpath(path), name)
            if other != name:
                what = f"{flag(other)} and {flag(name)} name the same file or folder"
                raise BertsmithError(what, path, "give each of them another name")
            if name in _FILES:
                files.check_file(Path(path))


@dataclass(frozen=True)
class Verb:
    """A verb of the command line. summary: a line. example: commands as a user would type them. run: gives the exit
    status; None for done."""

    summary: str
    example: str
    run: Callable[[Call], int | None]

    def description(self) -> str:
        """What its help begins with."""
        everywhere = "Everywhere: --quiet shows warnings only, --debug everything."
        return f"{self.summary}\n\nExample:\n{self.example}\n\n{everywhere}"
