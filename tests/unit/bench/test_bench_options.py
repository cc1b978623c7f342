"""What is said of a bench before it begins: options that change nothing, and sources by their place in the data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench import run, text
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.run import NAMES, run_bench
from bertsmith.bench.text import cut_texts, name_sources, vocabulary_for
from bertsmith.cli import main
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import train_vocabulary


def test_options_that_a_bench_does_not_use_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert [BenchOptions().without_effect(name) for name in NAMES] == [[]] * len(NAMES)
    given = BenchOptions(corpus=tmp_path / "none", sizes=(1.0,), lengths=(64,), workers=1, only="x")
    with pytest.raises(BertsmithError):
        run_bench("batches", given, ["bertsmith", "bench", "batches"])
    assert [record.message for record in caplog.records] == [
        "warning: --only has no effect: bench batches does not use it",
        "warning: --sizes has no effect: a corpus is given, so no text is prepared",
        "warning: --workers has no effect: a corpus is given, so no text is prepared",
    ]
    assert [line.split()[0] for line in given.without_effect("prepare")] == ["--corpus", "--lengths", "--only"]
    assert [line.split()[0] for line in given.without_effect("pretrain-step")] == ["--sizes", "--workers"]
    assert [line.split()[0] for line in given.without_effect("scaling")] == [
        *("--corpus", "--sizes", "--lengths", "--workers", "--only")
    ]


def test_lengths_are_the_given_ones_or_both_of_the_reference() -> None:
    assert BenchOptions().sequence_lengths() == (128, 512)
    assert BenchOptions(lengths=(64,)).sequence_lengths() == (64,)


@pytest.mark.parametrize("name", ["prepare", "batches", "predict", "serve", "scaling"])
def test_a_device_that_a_bench_does_not_measure_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_bench", lambda name: pytest.fail("it was measured"))
    assert main(["bench", name, "--device", "cuda"]) == 2
    message = capsys.readouterr().err
    assert f"bench {name} measures the CPU alone, not cuda" in message
    assert "a GPU is measured by pretrain-step, finetune, reference and `make gpu-check`" in message
    assert "no effect" not in message


def test_a_bench_of_servers_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("bertsmith.bench.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httptools", None)
    with pytest.raises(BertsmithError, match="httptools, which is not installed") as raised:
        run_bench("serve", BenchOptions(), ["bertsmith", "bench", "serve"])
    assert raised.value.fix == "pip install 'bertsmith[serve]'"


def test_what_is_named_twice_is_measured_once() -> None:
    given = BenchOptions(against=("litserve", "fastapi", "litserve"))
    assert given.peers(("fastapi", "litserve", "infinity"), "serve") == ("litserve", "fastapi")


@pytest.mark.parametrize("size", ["nan", "inf", "0", "-1"])
@pytest.mark.parametrize("bench", ["prepare", "batches"])
def test_a_size_that_no_text_has_is_refused(bench: str, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By its flag, and not by a file that the bench makes of it, or as a bug of ours."""
    assert main(["bench", bench, "--sizes", "1", size, "--against"]) == 2
    assert f"sizes are [1.0, {float(size)}]\n  where: --sizes" in capsys.readouterr().err


@pytest.mark.parametrize("length", ["0", "-5", "4", "70000"])
@pytest.mark.parametrize("bench", ["batches", "pretrain-step"])
def test_a_length_that_no_pair_has_is_refused(bench: str, length: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before text is prepared, and not by the last words of a process that was given it."""
    assert main(["bench", bench, "--device", "auto", "--lengths", "128", length]) == 2
    message = capsys.readouterr().err
    assert f"sequence length {length} is not possible for pairs\n  where: --lengths" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("flag", ["--minutes=nan", "--minutes=-1", "--workers=0", "--workers=-1"])
def test_no_minutes_or_workers_that_cannot_be(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_bench", lambda name: pytest.fail("it was measured"))
    assert main(["bench", "prepare", flag]) == 2
    name, value = flag.removeprefix("--").split("=")
    assert capsys.readouterr().err.startswith(f"{name} is {value}")


def test_sources_are_named_by_their_place_in_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTSMITH_DATA", "/somewhere/data")
    named = ["/somewhere/data/wiki", "/somewhere/data", "/somewhere/data2/wiki", "mine"]
    assert name_sources(named) == "$BERTSMITH_DATA/wiki, $BERTSMITH_DATA, /somewhere/data2/wiki, mine"


def test_a_vocabulary_is_trained_on_as_many_bytes_as_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of letters of two bytes, too."""
    monkeypatch.setenv("BERTSMITH_DATA", str(tmp_path / "none"))
    given: list[str] = []

    def trained(sample: list[str], size: int) -> Tokenizer:
        given.extend(sample)
        return train_vocabulary(sample, size)

    monkeypatch.setattr(text, "train_vocabulary", trained)
    (tmp_path / "a.txt").write_text("Кошка сидела на коврике, и всё было хорошо. " * 20, encoding="utf-8")
    cut = cut_texts([str(tmp_path / "a.txt")], [1000], tmp_path)[0]
    for most, told in ((1000, "trained on 1.0 kB of the text"), (10**6, "trained on 1.6 kB of the text")):
        monkeypatch.setattr(text, "_SAMPLE_BYTES", most)
        given.clear()
        folder, what = vocabulary_for(None, cut, tmp_path / "tokenizer")
        assert (folder / "vocab.txt").is_file()
        assert what.startswith(told)
        assert len("\n".join(given).encode()) in (min(most, cut.text_bytes) - 1, min(most, cut.text_bytes))


def test_windows_gets_a_message_instead_of_an_import_error() -> None:
    """Without the modules that POSIX systems alone have."""
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(['resource', 'fcntl', 'grp', 'pwd', 'termios']))\n"
        "from bertsmith.base.errors import BertsmithError\nfrom bertsmith.bench.options import BenchOptions\n"
        "from bertsmith.bench.run import run_bench\nsys.platform = 'win32'\n"
        "try:\n    run_bench('prepare', BenchOptions(), [])\n"
        "except BertsmithError as error:\n    sys.exit('Windows' not in error.what)\nsys.exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
