"""A folder is held by one process, or by several that share it, and by nobody once they have ended, killed or not."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bertsmith.base import locks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import alone_in, locked
from made_locks import holder


def refusal(folder: Path, shared: bool = False) -> BertsmithError:
    with pytest.raises(BertsmithError) as caught, locked(folder, shared, doing="training in this folder"):
        pass
    return caught.value


def test_a_second_process_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "new"
    with holder(folder) as process:
        for shared in (False, True):
            error = refusal(folder, shared)
            assert (
                error.what == f"another process is training in this folder (process {process.pid} on {platform.node()})"
            )
            assert error.where == str(folder)
        with alone_in(folder) as alone:
            assert not alone
        process.communicate("")
    with locked(folder):
        assert f"process {os.getpid()} " in refusal(folder).what, "a second time in this process is refused too"
    assert (folder / ".lock").read_bytes() == b"", "nobody is named once the lock is released"


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert f"process {process.pid}" in (tmp_path / ".lock").read_text(), "it had no time to clear its name"
        with alone_in(tmp_path) as alone:
            assert alone
        with locked(tmp_path, shared=True):
            assert refusal(tmp_path).what == "another process is training in this folder", (
                "not by the killed one's name"
            )


def test_several_share_a_folder_and_nobody_has_it_alone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(holder(tmp_path, shared=True)) for _ in range(2)]
        with locked(tmp_path, shared=True):
            pass
        for process in processes:
            assert refusal(tmp_path).what == "another process is training in this folder"
            process.communicate("")
        with locked(tmp_path):
            pass


def test_a_lock_that_was_removed_is_lost_and_taken_again_where_nobody_else_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder) as held:
        assert not held.is_lost()
        (folder / ".lock").unlink()
        assert held.is_lost()
        with holder(folder) as process:
            with pytest.raises(BertsmithError, match=rf"another process .* \(process {process.pid} "):
                held.take_again()
            assert held.is_lost()
        os.rename(folder, tmp_path / "moved")
        held.take_again()
        assert not held.is_lost()
        assert f"process {os.getpid()} " in refusal(folder).what


def test_a_file_system_without_locks_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    def none(handle: int, shared: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "_lock", none)
    with locked(tmp_path):
        pass
    (warning,) = said.messages
    assert "no lock (No locks available), so a second run into this folder would not be refused" in warning


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BertsmithError, match="a file is in the way"), locked(tmp_path / "file"):
        pass


_ON_WINDOWS = """
import importlib, sys, types
from pathlib import Path
from bertsmith.base import locks

taken = []
def locking(handle, mode, count):
    import os
    taken.append((os.lseek(handle, 0, os.SEEK_CUR), mode, count))
    if len(taken) > 1:
        raise PermissionError(13, "Permission denied")

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
sys.platform = "win32"
importlib.reload(locks)
sys.platform = "linux"
folder = Path(sys.argv[1])
with locks.locked(folder, doing="training"):
    try:
        with locks.locked(folder, doing="training"):
            sys.exit("taken twice")
    except locks.BertsmithError as error:
        assert error.what.startswith("another process is training (process "), error.what
    with locks.locked(folder, shared=True):
        pass
assert taken == [(1 << 20, 2, 1)] * 2, taken
"""


def test_windows_locks_a_byte_that_nobody_reads(tmp_path: Path) -> None:
    """By a stand-in for its library: it was not run there."""
    done = subprocess.run(
        [sys.executable, "-c", _ON_WINDOWS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
