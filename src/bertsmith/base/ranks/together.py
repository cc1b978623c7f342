"""Work that every rank does by itself, and that fails on all ranks where it fails on some."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import TypeVar

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of
from bertsmith.base.ranks import gathered, world_size

T = TypeVar("T")


def together(work: Callable[[], T]) -> T:
    """Calls `work`, which must not wait for other ranks, on every rank, and returns this rank's result.

    Where it fails on some ranks, it fails on all, which would else wait for those for ever: with a BertsmithError that
    names these ranks, or with the rank's own error where it is the same on all ranks or is no BertsmithError.
    """
    if world_size() == 1:
        return work()
    done: list[T] = []
    error: Exception | None = None
    try:
        done.append(work())
    except Exception as caught:  # any error: the other ranks would wait for ever
        error = caught
    said = gathered(None if error is None else (_words(error), platform.node()))
    failed = {number: each for number, each in enumerate(said) if each is not None}
    if not failed:
        return done[0]
    alike = len(failed) == len(said) and len({words for words, _ in failed.values()}) == 1
    if error is not None and (alike or not isinstance(error, BertsmithError)):
        raise error
    first = next(iter(failed.values()))[0]
    same = [number for number, (words, _) in failed.items() if words == first]
    others = [number for number in failed if number not in same]
    what, where, fix = first
    more = f"; {named(others)} failed too, with other errors" if others else ""
    hosts = "; ".join(dict.fromkeys(failed[number][1] for number in same))
    raise BertsmithError(f"{named(same)} failed: {what}{more}", f"{where} on {hosts}" if where else hosts, fix)


def named(numbers: Iterable[int]) -> str:
    """Such as "rank 3", "ranks 0, 2", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 120 more"."""
    shown = list(numbers)
    return f"rank{'s' if len(shown) > 1 else ''} {first_of(map(str, shown))}"


def _words(error: Exception) -> tuple[str, str, str]:
    if isinstance(error, BertsmithError):
        return error.what, error.where, error.fix
    return f"{type(error).__name__}: {error}", "", "see what that rank wrote"
