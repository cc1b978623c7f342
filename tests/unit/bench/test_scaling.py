"""The bench of several ranks names the loopback as this system does."""

from __future__ import annotations

import sys

import pytest

from bertsmith.bench.scaling.bench import loopback


@pytest.mark.parametrize(("system", "name"), [("linux", "lo"), ("darwin", "lo0")])
def test_ranks_of_the_bench_talk_over_the_loopback(system: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert loopback() == name
