"""Slurm's lists of hosts: every host of every list, in order, and a message for what is no list."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.host_lists import hosts

names = st.text("abcxyz0123456789-.", min_size=1, max_size=6)


@st.composite
def brackets(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracket as Slurm writes it, and what it stands for."""
    texts, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        width, first = draw(st.integers(1, 4)), draw(st.integers(0, 99))
        last = first + draw(st.integers(0, 5))
        texts.append(f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}")
        numbers += [f"{number:0{len(f'{first:0{width}d}')}d}" for number in range(first, last + 1)]
    return f"[{','.join(texts)}]", numbers


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A part of a list: names with brackets between them, as in rack[1-2]node[01-04]-ib."""
    text = draw(names)
    meant = [text]
    for _ in range(draw(st.integers(0, 2))):
        bracket, numbers = draw(brackets())
        after = draw(st.one_of(st.just(""), names))
        text += bracket + after
        meant = [f"{before}{number}{after}" for before in meant for number in numbers]
    return text, meant


@given(st.lists(entries(), min_size=1, max_size=4))
def test_every_host_of_a_list_in_order(parts: list[tuple[str, list[str]]]) -> None:
    text = ",".join(part for part, _ in parts)
    assert list(hosts(text)) == [host for _, meant in parts for host in meant]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("node[01-03,7],login1", ["node01", "node02", "node03", "node7", "login1"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        (" login1\n", ["login1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("[1-2].example", ["1.example", "2.example"]),
    ],
)
def test_lists_that_slurm_writes(text: str, meant: list[str]) -> None:
    assert list(hosts(text)) == meant


def test_the_first_of_many_hosts_is_there_at_once() -> None:
    assert list(islice(hosts("n[1-999999999999]"), 2)) == ["n1", "n2"]


@pytest.mark.parametrize(
    "text", ["", "node[1-2", "node[a-b]", "node[]", "a,,b", "node]1[", "node[1-]", "n[3-1]", "a b"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(BertsmithError, match="is not a list of hosts") as caught:
        list(hosts(text))
    assert "MASTER_ADDR" in caught.value.fix
