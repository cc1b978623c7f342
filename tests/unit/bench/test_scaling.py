"""The bench of several ranks names the loopback as this system does, and waits for no rank whose partner has ended."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.launcher import loopback
from bertsmith.bench.process import Child
from bertsmith.bench.scaling.bench import Ranks, Side

WAITING = """
import time
from bertsmith.bench.child import serve

class Worker:
    def ready(self):
        return {}

def start(spec):
    if spec["rank"]:
        raise ValueError("no such rank")
    time.sleep(3600)
    return Worker()

serve(start)
"""


@pytest.mark.parametrize(("system", "name"), [("linux", "lo"), ("darwin", "lo0")])
def test_ranks_of_the_bench_talk_over_the_loopback(system: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert loopback() == name


def test_a_rank_that_ends_is_told_while_another_one_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting_rank.py").write_text(WAITING)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    init = Child.__init__
    monkeypatch.setattr(Child, "__init__", lambda self, module, *given: init(self, "waiting_rank", *given))
    with pytest.raises(BertsmithError, match="no such rank"), ExitStack() as ends:
        Ranks(Side(2), {}, tmp_path / "ranks", ends)
