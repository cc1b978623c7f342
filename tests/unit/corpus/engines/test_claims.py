"""Claims on parts: one of several gets a part, the dead lose theirs, and the end of the work is noticed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.engines import claims as claims_module
from bertsmith.corpus.engines.claims import Claims, SessionOver, all_inactive

LONG, SHORT = 600.0, 0.3


def test_of_many_at_once_one_gets_each_part(tmp_path: Path) -> None:
    got: list[tuple[int, int]] = []
    ready = threading.Barrier(4)

    def work(seat: int) -> None:
        claims = Claims(tmp_path, seat, LONG)
        with claims.seated():
            ready.wait()
            got.extend((part, seat) for part in range(60) if claims.take("stage", part))
            ready.wait()

    threads = [threading.Thread(target=work, args=(seat,)) for seat in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(part for part, _ in got) == list(range(60))


def test_results_are_read_by_the_others(tmp_path: Path) -> None:
    one, two = Claims(tmp_path, 1, LONG), Claims(tmp_path, 2, LONG)
    with one.seated(), two.seated():
        assert one.take("stage", 3)
        assert not two.take("stage", 3)
        assert two.finished("stage") == set()
        one.finish("stage", 3, {"tokens": 5, "share": 0.1})
        assert two.finished("stage") == {3}
        assert two.result("stage", 3) == {"tokens": 5, "share": 0.1}
        assert two.finished("another") == set()


def test_a_task_that_is_started_again_has_its_parts_back_at_once(tmp_path: Path) -> None:
    dead, other, again = Claims(tmp_path, 1, LONG), Claims(tmp_path, 2, LONG), Claims(tmp_path, 1, LONG)
    with dead.seated(), other.seated():
        assert dead.take("stage", 0)
        assert not other.take("stage", 0)
        with again.seated():
            assert again.take("stage", 0)
            with pytest.raises(BertsmithError, match="another process runs as array task 1"):
                dead.take("stage", 1)


def test_a_standing_beat_frees_a_claim_and_a_moving_one_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0  # the waiting process's own; by a real one, a busy machine would look like a dead process
    monkeypatch.setattr(claims_module, "time", SimpleNamespace(monotonic=lambda: clock))
    alive, other = Claims(tmp_path, 1, LONG), Claims(tmp_path, 2, LONG)
    (tmp_path / "seats").mkdir()
    (tmp_path / "seats" / "3").write_text("gone 7")
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "1.claim").write_text("3 gone")
    (tmp_path / "stage" / "2.claim").write_text("")  # its maker died before it had signed
    with alive.seated(), other.seated():
        assert alive.take("stage", 0)
        process = (tmp_path / "seats" / "1").read_text().split()[0]
        for beat in range(5):
            (tmp_path / "seats" / "1").write_text(f"{process} {beat}")
            clock = beat * LONG / 3
            assert not any(other.take("stage", part) for part in (0, 1, 2) if beat < 4), (
                "not before a lease has gone by"
            )
        assert [other.take("stage", part) for part in (0, 1, 2)] == [False, True, True]
        clock += 2 * LONG
        assert other.take("stage", 0), "its beat stands still now"


def test_a_seated_process_beats(tmp_path: Path) -> None:
    with Claims(tmp_path, 1, SHORT).seated():
        before, deadline = (tmp_path / "seats" / "1").read_text(), time.monotonic() + 60
        while (tmp_path / "seats" / "1").read_text() == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_what_is_left_is_given_up_at_the_end(tmp_path: Path) -> None:
    claims, other = Claims(tmp_path, 1, LONG), Claims(tmp_path, 2, LONG)
    with other.seated():
        with claims.seated():
            assert claims.take("stage", 0)
        assert other.take("stage", 0)


def test_the_end_of_the_work_is_noticed(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "claims", 1, LONG)
    with claims.seated():
        shutil.rmtree(tmp_path / "claims")
        for call in (claims.check, lambda: claims.take("stage", 0), lambda: claims.finished("stage")):
            with pytest.raises(SessionOver):
                call()


def test_who_sleeps_is_told_by_the_folders_own_clock(tmp_path: Path) -> None:
    assert all_inactive(tmp_path / "nothing", LONG)
    with Claims(tmp_path, 1, LONG).seated():
        assert not all_inactive(tmp_path, LONG)
        written = (tmp_path / "seats" / "1").stat().st_mtime
        os.utime(tmp_path / "seats" / "1", (written, written - 2 * LONG))
        assert all_inactive(tmp_path, LONG)
        with Claims(tmp_path, 2, LONG).seated():
            assert not all_inactive(tmp_path, LONG), "one of two"
