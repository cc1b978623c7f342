"""What a verb of the command line is, and how it reads its flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bertsmith.recipes.flags import parse_flags, parse_two

T = TypeVar("T")
Options = TypeVar("Options")
EVERYWHERE = ("--quiet", "--debug")


@dataclass(frozen=True)
class Call:
    """A verb as it was called. prog: the verb as the user types it. description: what its help begins with. everywhere:
    the flags that every verb has, and which are not in `args`."""

    prog: str
    description: str
    args: list[str]
    everywhere: tuple[str, ...] = ()

    def read(self, kind: type[T]) -> T:
        """The verb's flags as a dataclass."""
        return parse_flags(kind, self.args, prog=self.prog, description=self.description)

    def read_with(self, kind: type[T], options: Options) -> tuple[T, Options]:
        """The verb's own flags, and those of the fields of `options`, which hold the defaults."""
        return parse_two(kind, options, self.args, prog=self.prog, description=self.description)


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
