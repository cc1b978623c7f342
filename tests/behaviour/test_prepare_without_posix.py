"""Promise: nothing in preparing text needs what only POSIX systems have. Shown on one from which that is taken away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The standard library is imported as it is; what of ours is imported after it sees no call that Windows lacks.
SCRIPT = """
import concurrent.futures.process, importlib, multiprocessing.spawn, os, pathlib, signal, subprocess, sys, tempfile
import types
import mwparserfromhell, numpy, sentencex, tokenizers

sys.platform = "win32"
for module, names in {
    os: ("fork", "sched_getaffinity", "getuid", "sysconf", "getloadavg"),
    signal: ("SIGPROF", "SIGUSR1", "SIGKILL", "setitimer", "ITIMER_PROF", "pthread_sigmask"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lambda handle, mode, count: None, LK_NBLCK=1, LK_UNLCK=0)

for name in sys.argv[3].split(","):
    importlib.import_module(name)
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import verify
corpus = prepare(sys.argv[1], sys.argv[2], options=PrepareOptions(vocabulary_size=300, workers=1, held_out=0))
assert verify(corpus) and corpus.documents("train") == 3
"""


def test_every_module_is_imported_and_a_corpus_is_made(tmp_path: Path) -> None:
    package = Path(__file__).resolve().parents[2] / "src" / "bertsmith"
    rooms = [
        path for room in ("rows", "tokens", "download", "corpus") for path in sorted((package / room).rglob("*.py"))
    ]
    names = [".".join(("bertsmith", *path.relative_to(package).with_suffix("").parts)) for path in rooms]
    pages = "".join(
        f"<page><title>T{n}</title><ns>0</ns><id>{n}</id><revision><text>A page about '''rivers''' and bridge {n}."
        "</text></revision></page>"
        for n in range(3)
    )
    (tmp_path / "dump.xml").write_text(f"<mediawiki>{pages}</mediawiki>")
    arguments = [str(tmp_path / "dump.xml"), str(tmp_path / "corpus"), ",".join(names)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
