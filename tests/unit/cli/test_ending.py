"""With what a verb ends: the status, and what is said."""

from __future__ import annotations

import errno
import signal

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import stop_on_signals, stop_requested
from bertsmith.cli import ending
from bertsmith.cli.ending import tell


def of_the_compiler(message: str) -> RuntimeError:
    return type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})(message)


def test_what_the_compiler_lost_to_a_signal_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else a signal of an earlier test of this process would count.
    monkeypatch.setattr(ending, "stop_requested", lambda: 0)
    status, said = tell(of_the_compiler("ImportError: /tmp/cache/ab/x.main.so: file too short"))
    assert status == 2
    assert "a file that the compiler keeps is damaged (file too short)" in said
    assert "where: /tmp/cache/ab/x.main.so" in said
    assert tell(of_the_compiler("CppCompileError: C++ compile error"))[0] == 1
    for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with monkeypatch.context() as patch, stop_on_signals():
            signal.raise_signal(number)
            patch.setattr(ending, "stop_requested", stop_requested)
            status, said = tell(of_the_compiler("CppCompileError: C++ compile error"))
        assert (status, said.partition(";")[0]) == (expected, "stopped while steps were compiled")
    monkeypatch.setattr(ending, "stop_requested", lambda: 143)
    assert "CppCompileError" in tell(of_the_compiler("CppCompileError: C++ compile error"), debug=True)[1]


@pytest.mark.parametrize(
    ("error", "status", "begins"),
    [
        (BertsmithError("no text", "here.txt", "name another"), 2, "no text\n  where: here.txt\n  fix:   name another"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("CUDA out of memory.\nTried"), 2, "memory ran out: CUDA out of memory.\n  fix:   compute less"),
        (MemoryError(), 2, "memory ran out: no memory\n  fix:   compute less at once"),
        (OSError(12, "Cannot allocate memory"), 2, "memory ran out: [Errno 12] Cannot allocate memory\n  fix:"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), 2, "memory ran out: CUDA error"),
        *(
            (PermissionError(number, said, "model"), 2, f"this cannot be read or written ({said})\n  where: model\n")
            for number, said in ((errno.EACCES, "Permission denied"), (errno.EPERM, "Operation not permitted"))
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "a text, not a name"),
            2,
            "this cannot be read or written (File name too long)\n  where: a text, not a name\n  fix:   give a shorter",
        ),
        (
            PermissionError(1, "Operation not permitted"),
            1,
            "PermissionError: [Errno 1] Operation not permitted\nthis is",
        ),
        *(
            (OSError(number, said), 2, f"could not write: {said}\n  where: standard output")
            for number, said in (
                (errno.ENOSPC, "No space left on device"),
                (errno.EDQUOT, "Disk quota exceeded"),
                (errno.EFBIG, "File too large"),
            )
        ),
        (OSError(28, "No space left on device", "a file"), 1, "OSError: [Errno 28] No space left on device: 'a file'"),
        (RuntimeError("another fault"), 1, "RuntimeError: another fault\nthis is a bug in Bertsmith"),
    ],
)
def test_each_error_has_its_status_and_message(error: BaseException, status: int, begins: str) -> None:
    assert tell(error)[0] == status
    assert tell(error)[1].startswith(begins)
    assert tell(error, debug=True)[1].endswith(tell(error)[1])
