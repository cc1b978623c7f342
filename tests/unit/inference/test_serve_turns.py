"""While it serves, threads hand Python's interpreter over sooner; afterwards as before."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.inference.server import serve


def test_threads_wait_less_for_the_interpreter_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    before, found = sys.getswitchinterval(), list[float]()

    async def noted(*given: Any) -> None:
        found.append(sys.getswitchinterval())

    monkeypatch.setattr(serve, "_run", noted)
    with pytest.raises(StoppedAfterSaving):
        serve.serve(serve.Settings({}, port=0))
    assert found == pytest.approx([1e-4])
    assert sys.getswitchinterval() == before
