"""Promise: killed at any moment, on a full disk or a forbidden one, a preparation comes to the bytes of a calm one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus, verify
from made_checkpoints import own_mounts
from made_corpora import OPTIONS, children, contents, start, wait_for


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_killed_at_moments_drawn_by_chance_until_it_ends(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], seed: int
) -> None:
    """The parent, or a worker too, is killed within its next twenty parts, four times; then it runs to its end."""
    draw, out, kills = random.Random(seed), tmp_path / "corpus", 0

    def parts() -> int:
        # Unlike glob, walk passes over folders that are removed meanwhile.
        return sum("part.done" in files for _, _, files in os.walk(out / ".work"))

    for _ in range(4):
        most = parts() + draw.randrange(20)
        process = start(source, out, workers=draw.choice([1, 2, 3]))
        if not wait_for(lambda most=most: (out / ".work").is_dir() and parts() >= most, process):
            break
        time.sleep(draw.random() * 0.05)
        workers = children(process)
        if workers and draw.random() < 0.6:
            os.kill(draw.choice(workers), signal.SIGKILL)
            time.sleep(draw.random() * 0.3)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
        if (out / "corpus.json").exists():
            break
    assert kills, "it was at work when it was killed"
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed
    assert verify(Corpus.open(out))


ON_A_DISK = """
mount -t tmpfs -o size={size} none "$0" && mkdir "$0/c" || exit 77
{before}
{python} -m bertsmith prepare {source} --documents line --vocabulary-size 512 --part-bytes 11000 --shard-tokens 11000 \
  --held-out 0.1 --workers {workers} --out "$0/c" --quiet
status=$?
{after}
cp -r "$0/c" {copy}
exit $status
"""


HOG = """
import glob, sys, time
while len(glob.glob(sys.argv[1] + '/c/.work/cleaned/*/part.done')) < 2: time.sleep(0.001)
file = open(sys.argv[1] + '/hog', 'wb', buffering=0)
try:
    while True: file.write(bytes(4096))
except OSError: pass
"""


def on_a_disk(tmp_path: Path, source: Path, size: str, **script: object) -> subprocess.CompletedProcess[str]:
    """A preparation onto a disk of `size`, in a name space of its own; what is left on it is copied to `copy`."""
    (tmp_path / "disk").mkdir()
    values = {"before": "", "after": "", "workers": 1, **script}
    text = ON_A_DISK.format(size=size, source=source, python=sys.executable, copy=tmp_path / "copy", **values)
    call = ["unshare", "-rm", "sh", "-c", text, str(tmp_path / "disk")]
    return subprocess.run(call, capture_output=True, text=True, timeout=100, check=False)


@own_mounts
@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_fills_up_meanwhile(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], workers: int
) -> None:
    """Enough is free when it starts; then something else takes the space. Later, with space, it goes on."""
    hog, gone = f'{sys.executable} -c "{HOG}" "$0" >/dev/null 2>&1 &', 'kill $! 2>/dev/null; rm -f "$0/hog"'
    done = on_a_disk(tmp_path, source, "3m", before=hog, after=gone, workers=workers)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr
    assert "run the command again" in done.stderr
    left = tmp_path / "copy"
    assert not (left / "corpus.json").exists()
    assert list(left.glob(".work/cleaned/*/part.done")), "finished parts stay"
    assert not list(left.glob(".work/**/.*.part")), "nothing half written is left"
    prepare(source, left, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(left) == undisturbed


@own_mounts
def test_a_disk_that_is_too_small_from_the_start(source: Path, tmp_path: Path) -> None:
    done = on_a_disk(tmp_path, source, "1m")
    assert done.returncode == 2, done.stderr
    assert "of disk while this runs, only" in done.stderr
    assert done.stderr.count("where: ") == 1
    assert not list((tmp_path / "copy").glob(".work/*/*"))


@own_mounts
def test_a_disk_that_may_not_be_written(source: Path, tmp_path: Path) -> None:
    done = on_a_disk(tmp_path, source, "4m", before='mount -o remount,ro "$0"')
    assert done.returncode == 2, done.stderr
    assert "Read-only file system" in done.stderr
    assert "disk that can be written to" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(BertsmithError, match="Permission denied") as caught:
        prepare(source, tmp_path / "closed" / "corpus", options=PrepareOptions(**OPTIONS, workers=1))
    assert "permissions" in caught.value.fix
