"""Slurm's short form of a list of hosts: `node[01-03,7],login1` is node01, node02, node03, node7 and login1."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bertsmith.base.errors import BertsmithError

# Outside of brackets.
_COMMA = re.compile(r",(?![^\[]*\])")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
# A name's letters up to a bracket, and the bracket's inside; several of both make one name, as in rack[1-2]node[1-4].
_PIECE = re.compile(r"([^\[\],\s]*)\[([^\[\]]*)\]|([^\[\],\s]+)")
_FIX = "set MASTER_ADDR to the host of the first task, and MASTER_PORT to a port that is free there"


def hosts(text: str) -> Iterator[str]:
    """The hosts of a list in Slurm's order, one at a time: a range may be long. BertsmithError for what is no list."""
    for entry in _COMMA.split(text.strip()):
        yield from _expanded(entry, text)


def _expanded(entry: str, text: str) -> Iterator[str]:
    match = _PIECE.match(entry)
    if not match:
        raise BertsmithError(f"'{text}' is not a list of hosts as Slurm writes it", "SLURM_STEP_NODELIST", _FIX)
    prefix, ranges, plain = match.groups()
    rest = entry[match.end() :]
    for start in [plain] if ranges is None else (prefix + number for number in _numbers(ranges, text)):
        for end in _expanded(rest, text) if rest else [""]:
            yield start + end


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for each in ranges.split(","):
        match = _RANGE.fullmatch(each)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise BertsmithError(f"'{text}' is not a list of hosts as Slurm writes it", "SLURM_STEP_NODELIST", _FIX)
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
