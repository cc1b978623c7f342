"""The command line: help for every verb, one message for every mistake, and the exit status that scripts rely on."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest

from bertsmith import __version__
from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks import launcher
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli import main, ranks
from bertsmith.cli.distill import _corpus_flags
from bertsmith.cli.entry import VERBS
from bertsmith.cli.train import PretrainFlags, recipe_flags
from bertsmith.cli.verb import Call, Verb
from bertsmith.recipes.flags import flag, leaves
from bertsmith.recipes.loader import load_recipe
from bertsmith.recipes.schema import Recipe
from made_runs import save_recipe


def test_the_overview_lists_the_verbs_in_their_order(capsys):
    assert main(["--help"]) == main([]) == main(["-h"]) == main(["help"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^  (\w+) ", said.split("usage:")[1], re.MULTILINE) == list(VERBS)


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bertsmith {__version__}\n"


@cache
def help_of(verb: str) -> str:
    """What `--help` prints on a terminal of 100 columns."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("COLUMNS", "100")
        assert main([verb, "--help"]) == 0
    return printed.getvalue()


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_whose_flags_exist(verb):
    said = help_of(verb)
    assert f"bertsmith {verb}" in VERBS[verb].example
    flags = set(re.findall(r"--[a-z][\w.-]*", VERBS[verb].example))
    assert all(flag in said for flag in flags)
    assert "--quiet" in said


def test_help_and_mistyped_flags_of_all_verbs_are_answered_without_torch():
    """So that they are there at once. The first call that loads it is named."""
    code = f"""
import sys
from bertsmith.cli import main
for call in {[[verb, flag] for verb in VERBS for flag in ("--help", "--no-such-flag")]!r}:
    main(call)
    if "torch" in sys.modules:
        sys.exit(f"{{call}} loads torch")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_flag_states_one_default(verb):
    flags = {said.split()[0]: said for said in re.split(r"\n\W\W(?=--)", help_of(verb))[1:]}
    for name, said in flags.items():
        assert len(re.findall(r"\bdefault\b", said, re.IGNORECASE)) <= 1, said
        opposite = flags.get(re.sub(r"(\w+),?$", r"no-\1", name))
        assert opposite is None or "(default" not in said + opposite


def test_help_of_a_preset_shows_its_numbers(capsys):
    main(["pretrain", "bert-large-nvlamb", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "65536" in said
    assert "(default: 1024)" in said


@pytest.mark.parametrize("verb", ["finetune", "distill", "plan"])
def test_help_of_a_benchmark_shows_its_columns_and_what_a_task_may_be(verb, capsys):
    main([verb, "mrpc", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "[OPTIONS] TASK" in said
    assert "(default: Quality)" in said


@pytest.mark.parametrize("verb", ["pretrain", "plan"])
def test_help_of_a_recipes_file_shows_its_numbers_and_without_one_says_whose_they_are(verb, capsys, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("phase1:\n  global_batch: 77\n", encoding="utf-8")
    assert main([verb, str(path), "--help"]) == 0
    said = capsys.readouterr()
    assert "(default: 77)" in " ".join(said.out.split())
    assert "Numbers are those of" not in said.out
    assert "phase1.steps 1000" in said.err, "what a file leaves out is told with its value"
    assert main([verb, "--help"]) == 0
    assert "Numbers are those of bert-base-nvlamb" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", [name for name, kind in leaves(Recipe) if kind is bool])
def test_a_switch_of_a_recipe_reaches_it(name, value, tmp_path):
    """As the help has it, without a value."""
    file = str(tmp_path / "other.yaml")
    save_recipe(load_recipe("bert-tiny", [f"--{name}={not value}"]), Path(file))
    switch = f"--{name}" if value else flag(re.sub(r"(\w+)$", r"no_\1", name))
    call = Call("bertsmith pretrain", "", [file, "--corpus", "c", "--out", "o", switch])
    assert attrgetter(name)(recipe_flags(call, PretrainFlags)[1]) is value
    call = replace(call, args=["--teacher", "t", "--student", file, *call.args[1:]])
    assert attrgetter(name)(_corpus_flags(call)[1]) is value


def test_help_says_that_no_triton_server_has_run_an_export(capsys):
    main(["export", "--help"])
    said = " ".join(re.sub("[^a-zA-Z']", " ", capsys.readouterr().out).split())
    assert "neither that server nor TensorRT has run such a repository yet" in said


@pytest.mark.parametrize(
    ("args", "what", "fix"),
    [
        (["pretran"], "there is no verb 'pretran'", "did you mean 'pretrain'?"),
        (["verify", "--corpus", "y"], "there is no flag --corpus", "write its value alone, without a flag"),
        (["prepare", "x", "--cased"], "there is no flag --cased", "did you mean '--no-lowercase'?"),
        (["vocab", "x", "--no-lowercase"], "there is no flag --no-lowercase", "did you mean '--cased'?"),
        (
            ["finetune", "qa", "--max_seq_length=384"],
            "there is no flag --max_seq_length",
            "did you mean '--max-length'?",
        ),
        (["predict", "m", "x", "--output_dir", "o"], "there is no flag --output_dir", "did you mean '--out'?"),
        (["finetune", "classify", "--lr", "1"], "there is no flag --lr", "did you mean '--learning-rate'?"),
        (["verify", "x", "--xy", "y"], "there is no flag --xy", "known are: CORPUS"),
        (["verify"], "missing: CORPUS", "bertsmith verify --help"),
        (["verify", "no/such/corpus"], "no/such/corpus", "bertsmith prepare"),
        (["quickstart", "--budget", "huge"], "--budget is 'huge'", "use one of: tiny, normal"),
        (
            ["predict", "x", "y", "--columns.no-no-header"],
            "no flag --columns.no-no-header",
            "did you mean '--columns.no-header'?",
        ),
        (
            ["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--learning-rate", "1"],
            "there is no flag --learning-rate",
            "did you mean '--phase1.learning-rate' or '--phase2.learning-rate'?",
        ),
        (["predict", "m", "x", "--text", "body"], "there is no flag --text", "did you mean '--columns.text'?"),
        (["quickstart", "--sorce", "x"], "there is no flag --sorce", "did you mean '--source'?"),
        (["pretrain", "bert-tinny", "--corpus", "c", "--out", "o"], "neither a preset nor", "'bert-tiny'"),
        (["pretrain", "bert-tiny", "--out", "o"], "missing: --corpus PATH", "pretrain --help"),
        (
            ["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--phase1.stps=4"],
            "--phase1.stps",
            "'--phase1.steps'",
        ),
        (["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--seed", "x"], "seed is 'x'", "whole number"),
        (["pretrain", "bert-tiny", "--corpus", "no/corpus", "--out", "o"], "no/corpus", "bertsmith prepare"),
    ],
)
def test_a_mistake_is_one_message_and_status_2(args, what, fix, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    said = capsys.readouterr().err
    assert what in said
    assert fix in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


def failing(error: BaseException) -> Verb:
    def run(call):
        raise error

    return Verb("Fails.", "  bertsmith fail", run)


@pytest.mark.parametrize(
    ("error", "status", "said", "traced"),
    [
        (
            BertsmithError("the what", "the where", "the fix"),
            2,
            "the what\n  where: the where\n  fix:   the fix\n",
            False,
        ),
        (ValueError("off by one"), 1, "this is a bug in Bertsmith", True),
        (KeyboardInterrupt(), 130, "interrupted", False),
        (StoppedAfterSaving("saved at step 7"), 143, "saved at step 7", False),
    ],
)
def test_exit_status(error, status, said, traced, capsys, monkeypatch):
    monkeypatch.setitem(VERBS, "fail", failing(error))
    assert main(["fail"]) == status
    spoken = capsys.readouterr().err
    assert said in spoken
    assert ("Traceback" in spoken) == traced


def test_debug_shows_where_a_message_came_from(capsys, monkeypatch):
    monkeypatch.setitem(VERBS, "fail", failing(BertsmithError("the what")))
    assert main(["--debug", "fail"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("args", ["--version", "pretrain --help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_error(args: str, unbuffered: str, tmp_path: Path) -> None:
    gone = f"while test ! -e gone; do sleep 0.01; done; {sys.executable} -m bertsmith {args}"
    shell = f"({gone}) | (exec <&-; touch gone); exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
@pytest.mark.parametrize("args", ["--version", "predict --help"])
def test_a_full_disk_behind_standard_output_is_one_message(args: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "bertsmith", *args.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "could not write: No space left on device")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_a_message_that_cannot_be_written_changes_no_status_and_goes_nowhere_else(errors: str) -> None:
    shell = f"{sys.executable} -m bertsmith verify no/such/corpus {errors}"
    done = subprocess.run(["bash", "-c", shell], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_name_that_is_no_text_is_printed_with_the_number_of_its_byte(monkeypatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))
    monkeypatch.setitem(VERBS, "say", Verb("Says.", "  bertsmith say", lambda _: print("corpus-\udcff")))
    assert main(["say"]) == 0
    assert written.getvalue().split() == [rb"corpus-\udcff"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((f"{verb} x", "standard output is closed") for verb in ("inspect", "verify", "evaluate", "plan", "bench")),
        ("--version", "standard output is closed"),
        ("pretrain --help", "standard output is closed"),
        ("vocab no/such/text --size 512 --out o", "there is nothing at this path"),
        ("verfy corpus", "there is no verb 'verfy'"),
    ],
)
def test_what_would_be_printed_alone_is_refused_where_standard_output_is_closed(call, message, monkeypatch, capsys):
    """As a shell's >&- has it. What is written to a file needs none."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(call.split()) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.skipif(sys.platform == "win32", reason="it closes no streams there")
def test_no_pipe_takes_the_number_of_a_standard_stream_that_is_closed() -> None:
    """`predict --workers 2 <&- >&- 2>&-` did not end: a worker closes its standard input, which was a pipe."""
    code = "import os; from bertsmith.cli import main; main(['--version']); os._exit(min(os.pipe()))"
    closed = 'exec "$0" -c "$1" <&- >&- 2>&-'
    assert subprocess.run(["bash", "-c", closed, sys.executable, code], check=False).returncode > 2


def test_a_reader_gets_what_it_reads_before_it_goes() -> None:
    shell = f"{sys.executable} -m bertsmith pretrain --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: bertsmith pretrain")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "call",
    [
        ["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--no-such-flag", "1"],
        ["pretrain", "nowhere.yaml", "--corpus", "c", "--out", "o"],
        ["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--phase1.steps", "few"],
        ["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--rank-timeout", "nan"],
        ["finetune", "classify", "--no-such-flag", "1"],
    ],
)
def test_what_is_wrong_before_ranks_meet_is_one_message_for_each_host(call, monkeypatch, capsys):
    """Four tasks of srun on two hosts."""
    said = []
    for rank in range(4):
        monkeypatch.setenv("SLURM_STEP_ID", "0")
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        monkeypatch.setenv("SLURM_LOCALID", str(rank % 2))
        try:
            status = main(call)
        except SystemExit as end:
            status = end.code
        assert status == 2
        said.append(capsys.readouterr().err)
    assert said[0]
    assert said[1] == said[3] == ""
    assert said[2] == f"rank 2: {said[0]}"


def test_a_rank_of_torchrun_says_which_it_is_where_it_fails_before_the_ranks_meet(monkeypatch, capsys):
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert main(["pretrain", "nowhere.yaml", "--corpus", "c", "--out", "o"]) == 2
    assert capsys.readouterr().err.startswith("rank 3: ")


def test_more_processes_than_memory_holds_are_refused_and_more_than_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "default_workers", lambda: 2)
    monkeypatch.setattr(ranks, "usable_memory", lambda: 8_000_000_000)
    started = []
    monkeypatch.setattr(launcher, "launch", lambda command, count, *more: started.append(count) or 0)
    call = ["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--ranks"]
    assert [main([*call, number]) for number in ("2", "3", "300")] == [0, 0, 2]
    assert started == [2, 3]
    warning, refusal, where, fix = capsys.readouterr().err.splitlines()
    assert warning == "warning: --ranks 3 are more processes than the 2 cores here, so they wait for each other"
    assert refusal == "300 processes take 45.0 GB of memory before they have a model, and 8.0 GB are there"
    assert where.endswith("--ranks")
    assert "use at most --ranks 2:" in fix


@pytest.mark.parametrize(("memory", "fitting"), [(4_000_000_000, 26), (100_000_000, 1)])
def test_memory_that_does_not_suffice_for_the_cores_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], memory: int, fitting: int
) -> None:
    monkeypatch.setattr(ranks, "default_workers", lambda: 128)
    monkeypatch.setattr(ranks, "usable_memory", lambda: memory)
    started = []
    monkeypatch.setattr(launcher, "launch", lambda command, count, *more: started.append(count) or 0)
    call = ["pretrain", "bert-tiny", "--corpus", "c", "--out", "o", "--ranks"]
    for number in ("128", "129", "27"):
        assert main([*call, number]) == 2
        assert f"use at most --ranks {fitting}:" in capsys.readouterr().err
    assert not started
    assert ranks._fitting(fitting) == fitting


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (["pretrain", "bert-tiny", "--corpus", "c", "--out", ""], "--out"),
        (["pretrain", "bert-tiny", "--corpus=", "--out", "o"], "--corpus"),
        (["finetune", "classify", "--model", "", "--train", "t", "--out", "o"], "--model"),
        (["finetune", "classify", "--model", "m", "--train", "", "--out", "o"], "--train"),
        (["predict", "m", "", "--out", "o"], "an argument"),
        (["predict", "--likelihood", "", "rows.csv", "--out", "o"], "an argument"),
        (["prepare", "", "--out", "o"], "an argument"),
    ],
)
def test_an_empty_path_is_not_the_present_folder(
    call: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(call) == 2
    assert capsys.readouterr().err.startswith(f"{named} is empty, as where a variable of the shell is not set")
