"""Files are written whole or not at all, and a disk that refuses is said in one message."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import bertsmith
from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.vocabularies import make_vocabulary
from bertsmith.inference.export.export import export


class FullDisk:
    """Stands in for os.fsync on a disk that is full: written data is refused when it is to be kept."""

    def __init__(self, code: int = errno.ENOSPC) -> None:
        self.code = code

    def __call__(self, handle: int) -> None:
        raise OSError(self.code, os.strerror(self.code))


def left_behind(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("wrong", [None, 5, b"folder", ["folder"], ""], ids=repr)
def test_what_is_no_path_is_named_by_its_argument(wrong):
    with pytest.raises(BertsmithError, match=r"^out is (of type|empty)") as caught:
        files.as_path(wrong, "out")
    assert caught.value.where == "out"


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda wrong, out: bertsmith.Predictor(wrong), "model"),
        (lambda wrong, out: bertsmith.Embedder(wrong), "model"),
        (lambda wrong, out: bertsmith.load_encoder(wrong), "model"),
        (lambda wrong, out: bertsmith.load_pretraining_model(wrong), "model"),
        (lambda wrong, out: export(wrong, out), "model"),
        (lambda wrong, out: bertsmith.finetune("classify", wrong, [], [], out), "model"),
        (lambda wrong, out: bertsmith.finetune("classify", out, [], [], 5), "out"),
        (lambda wrong, out: bertsmith.distill(wrong, None, out), "teacher"),
        (lambda wrong, out: bertsmith.distill(out, 5, out), "student"),
        (lambda wrong, out: bertsmith.prepare(out, wrong), "out"),
        (lambda wrong, out: bertsmith.prepare(wrong, out), "sources"),
        (lambda wrong, out: bertsmith.prepare([out, wrong], out), "sources"),
        (lambda wrong, out: bertsmith.prepare(out, out, tokenizer=5), "tokenizer"),
        (lambda wrong, out: make_vocabulary(wrong, out), "sources"),
        (lambda wrong, out: bertsmith.pretrain("bert-tiny", wrong, out), "corpus"),
        (lambda wrong, out: bertsmith.pretrain("bert-tiny", out, wrong), "out"),
        (lambda wrong, out: bertsmith.import_checkpoint(wrong, out), "checkpoint"),
        (lambda wrong, out: bertsmith.import_checkpoint(out, wrong), "out"),
    ],
)
def test_every_verb_names_an_argument_that_is_no_path(call, argument, tmp_path):
    with pytest.raises(BertsmithError, match=rf"^{argument} is of type .*, which is no path"):
        call(None, tmp_path / "out")
    assert not left_behind(tmp_path)


def test_text_and_json_come_back(tmp_path):
    files.write_text(tmp_path / "deep" / "a.txt", "naïve ☂\n")
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "naïve ☂\n"
    files.write_json(tmp_path / "b.json", {"z": 1, "a": ["é"]})
    assert files.read_json(tmp_path / "b.json") == {"z": 1, "a": ["é"]}
    assert "é" in (tmp_path / "b.json").read_text(encoding="utf-8")
    assert left_behind(tmp_path) == ["b.json", "deep"]
    files.write_json(tmp_path / "b.json", {"a": [math.nan, 1.0], "b": {"c": (-math.inf, "NaN")}})
    assert files.read_json(tmp_path / "b.json") == {"a": [None, 1.0], "b": {"c": [None, "NaN"]}}


REFUSALS = ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO", "EFBIG", "EPERM", "ENAMETOOLONG"]


@pytest.mark.parametrize("code", [getattr(errno, name) for name in REFUSALS])
def test_a_disk_that_refuses_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch, code):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    monkeypatch.setattr(os, "fsync", FullDisk(code))
    with pytest.raises(BertsmithError) as raised:
        files.write_text(path, "new")
    assert os.strerror(code) in raised.value.what
    assert raised.value.where == str(path)
    assert raised.value.fix
    assert path.read_text() == "old"
    assert left_behind(tmp_path) == ["a.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for make in (lambda path: files.write_text(path / "a.txt", ""), lambda path: files.whole_folder(path).__enter__()):
        with pytest.raises(BertsmithError, match="a file is in the way of this folder") as raised:
            make(tmp_path / "file" / "deep")
        assert raised.value.where == str(tmp_path / "file" / "deep")
    if sys.platform == "linux":
        with pytest.raises(BertsmithError, match="no folder can be made here"):
            files.make_folder(Path("/proc/no folder"))


def test_an_error_that_is_no_disks_fault_is_not_dressed_up(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", FullDisk(errno.EBADF))
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.write_text(tmp_path / "a.txt", "new")


def test_a_writer_that_fails_half_way_changes_nothing(tmp_path):
    path = tmp_path / "a.bin"
    files.write_whole(path, lambda file: file.write(b"old"))

    def half(file):
        file.write(b"ne")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        files.write_whole(path, half)
    assert path.read_bytes() == b"old"
    assert left_behind(tmp_path) == ["a.bin"]


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    for text in ("one", "two"):
        with files.whole_folder(tmp_path / "model") as aside:
            (aside / "part").mkdir()
            (aside / "part" / f"{text}.txt").write_text(text)
            seen = sorted(path.name for path in (tmp_path / "model").rglob("*.txt"))
            assert seen == (["one.txt"] if text == "two" else []), "readers see the old folder until the end"
    assert [path.name for path in (tmp_path / "model" / "part").iterdir()] == ["two.txt"]
    assert left_behind(tmp_path) == ["model"]


def test_a_folder_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    with files.whole_folder(tmp_path / "model") as aside:
        (aside / "weights").write_text("old")
    monkeypatch.setattr(os, "fsync", FullDisk())
    with pytest.raises(BertsmithError, match="No space"), files.whole_folder(tmp_path / "model") as aside:
        (aside / "weights").write_text("new")
    assert (tmp_path / "model" / "weights").read_text() == "old"
    assert left_behind(tmp_path) == ["model"]


def written(folder, text):
    with files.whole_folder(folder) as aside:
        (aside / "weights").write_text(text)


@pytest.mark.parametrize("spelled", [".", "../model", "deeper/.."])
def test_a_folder_that_one_is_in_is_replaced_and_said(tmp_path, monkeypatch, caplog, spelled):
    (tmp_path / "model" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "model")
    written(Path(spelled), "new")
    assert Path("weights").read_text() == "new", "a relative path means what it meant"
    assert left_behind(tmp_path) == ["model"]
    assert left_behind(tmp_path / "model") == ["weights"]
    assert "run `cd .` to see it" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("leads", [True, False])
def test_a_link_in_place_of_a_folder_is_replaced_and_what_it_leads_to_stays(tmp_path: Path, leads: bool) -> None:
    if leads:
        written(tmp_path / "theirs", "theirs")
    (tmp_path / "model").symlink_to(tmp_path / "theirs")
    written(tmp_path / "model", "ours")
    assert (tmp_path / "model" / "weights").read_text() == "ours"
    assert left_behind(tmp_path) == ["model", "theirs"][: 1 + leads]
    assert not leads or (tmp_path / "theirs" / "weights").read_text() == "theirs"
    (tmp_path / ".model.12.old").symlink_to(tmp_path / "theirs")
    files.put_back(tmp_path)
    assert left_behind(tmp_path) == ["model", "theirs"][: 1 + leads]


@pytest.mark.parametrize("fails", ["second rename", "last sync", "last rename"])
def test_a_folder_whose_replacement_fails_half_way_is_put_back(tmp_path, monkeypatch, fails):
    written(tmp_path / "model", "old")
    rename, seen = os.replace, []

    def failing_rename(source, target):
        seen.append(target)
        if len(seen) == {"second rename": 2, "last rename": 3}.get(fails):
            FullDisk()(0)
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing_rename)
    if fails == "last sync":
        monkeypatch.setattr(files, "sync", lambda path: FullDisk()(0) if path == tmp_path else None)
    with pytest.raises(BertsmithError, match="No space"):
        written(tmp_path / "model", "new")
    assert (tmp_path / "model" / "weights").read_text() == "old"
    assert left_behind(tmp_path) == ["model"]


def test_a_new_folder_that_cannot_be_kept_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "sync", lambda path: FullDisk()(0) if path == tmp_path else None)
    with pytest.raises(BertsmithError, match="No space"):
        written(tmp_path / "model", "new")
    assert left_behind(tmp_path) == []


def test_only_old_folders_of_that_name_are_put_back(tmp_path, caplog):
    for name in (".model.12.old", ".model.2.12.old", ".notes.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "of").write_text(name)
    files.put_back(tmp_path, "model")
    assert left_behind(tmp_path) == [".model.2.12.old", ".notes.old", "model"]
    assert (tmp_path / "model" / "of").read_text() == ".model.12.old"
    assert f"{tmp_path / 'model'} was restored" in caplog.text
    (tmp_path / ".model.13.old").mkdir()
    files.put_back(tmp_path)
    assert left_behind(tmp_path) == [".notes.old", "model", "model.2"], "what was replaced goes, what was not returns"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "missing"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5_000, "too many digits"),
    ],
)
def test_broken_json_is_named(tmp_path, content, what):
    path = tmp_path / "corpus.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BertsmithError, match=what) as raised:
        files.read_json(path, "prepare the corpus again")
    assert (raised.value.where, raised.value.fix) == (str(path), "prepare the corpus again")


def test_json_whose_name_no_file_can_have_is_named(tmp_path):
    with pytest.raises(BertsmithError) as raised:
        files.read_json(tmp_path / ("a" * 300))
    assert raised.value.where.endswith("aaa")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of POSIX")
def test_a_pipe_in_place_of_json_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(BertsmithError, match="a pipe, not a file") as raised:
        files.read_json(tmp_path / "config.json", "name a model folder")
    assert (raised.value.where, raised.value.fix) == (str(tmp_path / "config.json"), "name a model folder")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system names open files elsewhere")
def test_json_that_a_shell_pipes_in_is_read():
    reading, writing = os.pipe()
    try:
        os.write(writing, b"[1]")
        os.close(writing)
        assert files.read_json(Path(f"/dev/fd/{reading}")) == [1]
    finally:
        os.close(reading)


def test_json_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "corpus.json"
    path.symlink_to(path)
    with pytest.raises(BertsmithError, match=r"cannot be read .*symbolic links") as raised:
        files.read_json(path)
    assert raised.value.where == str(path)


def test_checksum(tmp_path):
    (tmp_path / "a").write_bytes(json.dumps(list(range(1000))).encode())
    assert files.sha256(tmp_path / "a") == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()


def test_two_processes_of_one_number_write_the_same_file_whole(tmp_path, monkeypatch):
    """As in two containers on one disk, whose process numbers are equal: the second writes while the first one does."""
    monkeypatch.setattr(os, "getpid", lambda: 12)
    path = tmp_path / "a.txt"

    def write(file):
        file.write(b"first")
        files.write_whole(path, lambda inner: inner.write(b"second"))
        assert path.read_bytes() == b"second"

    files.write_whole(path, write)
    assert path.read_bytes() == b"first"
    with files.whole_folder(tmp_path / "model") as first:
        (first / "of").write_text("first")
        with files.whole_folder(tmp_path / "model") as second:
            (second / "of").write_text("second")
        assert (tmp_path / "model" / "of").read_text() == "second"
    assert (tmp_path / "model" / "of").read_text() == "first"
    assert left_behind(tmp_path) == ["a.txt", "model"]


WRITES = """
import os, sys
from pathlib import Path
from bertsmith.base import files
folder = Path(sys.argv[1])
print(os.getpid(), flush=True)
sys.stdin.readline()
for number in range(200):
    files.write_text(folder / "a.txt", "x" * 5000)
"""


def test_two_containers_on_one_disk_write_the_same_file_whole(tmp_path):
    start = ["unshare", "--pid", "--fork", sys.executable, "-c", WRITES, str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*start[:3], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this process may make no namespaces of process numbers")
    both = [subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.stdout.readline() for each in both] == ["1\n", "1\n"], "each is the first process of its container"
    for each in both:
        each.stdin.write("\n")
        each.stdin.flush()
    assert [each.wait(240) for each in both] == [0, 0]
    assert left_behind(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "x" * 5000
    for each in both:
        each.communicate()


def test_what_another_host_has_written_is_waited_for(tmp_path):
    path = tmp_path / "step"
    assert not files.wait_for(path, seconds=0.1)
    threading.Timer(0.5, path.mkdir).start()
    assert files.wait_for(path, seconds=240)
    assert files.wait_for(path, seconds=0)


@pytest.mark.skipif(sys.platform != "linux", reason="writes where the system alone makes files")
def test_where_the_system_alone_makes_files_it_is_said(tmp_path: Path) -> None:
    for path in (Path("/proc/x.json"), Path("/proc/made/x.json")):
        with pytest.raises(BertsmithError, match=r"no (file|folder) can be made here|could not write"):
            files.write_text(path, "")
        with pytest.raises(BertsmithError, match=r"no file can be made here|could not write"):
            files.check_file(path)


def test_a_file_is_checked_before_it_is_written(tmp_path: Path) -> None:
    files.check_file(tmp_path / "new" / "x.json")
    (tmp_path / "x.json").write_text("old")
    files.check_file(tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"], "nothing is left, and no folder is made"
    assert (tmp_path / "x.json").read_text() == "old"
    with pytest.raises(BertsmithError, match="this is a folder"):
        files.check_file(tmp_path)
    with pytest.raises(BertsmithError, match="too long"):
        files.check_file(tmp_path / ("x" * 300))


def test_a_folder_by_its_shortest_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("."), Path("..")):
        with pytest.raises(BertsmithError, match="this is a folder"):
            files.check_file(path)
        files.check_place(path)
        files.check_name(path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BertsmithError, match="the root of a disk"):
        files.check_place(Path("/"))
    with pytest.raises(BertsmithError, match="the root of a disk"), files.whole_folder(Path("/")):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_what_a_link_leads_to_stays_as_it_is(tmp_path: Path) -> None:
    """As of a folder of links to somebody's model, in which one file is written anew."""
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    files.check_file(tmp_path / "link")
    files.write_text(tmp_path / "link", "ours")
    assert [(tmp_path / name).read_text() for name in ("theirs", "link")] == ["theirs", "ours"]


@pytest.mark.skipif(sys.platform != "linux", reason="these devices are Linux's")
def test_devices_and_pipes_are_refused_and_stay(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    paths = [Path("/dev/null"), Path("/dev/stdout"), Path("/dev/fd/1"), Path("/dev/x.json")]
    paths += [tmp_path / "pipe", tmp_path / "link"]
    for path in paths:
        for write in (files.check_file, lambda path: files.write_text(path, "")):
            with pytest.raises(BertsmithError, match="this is a device or a pipe"):
                write(path)
    assert Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
