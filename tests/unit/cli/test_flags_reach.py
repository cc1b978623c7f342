"""Every flag of a verb reaches the function that the verb calls, which is not run here."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bertsmith.bench.options import BenchOptions
from bertsmith.cli import main
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.vocabularies import VocabularyOptions
from bertsmith.download.download import DownloadOptions
from bertsmith.inference.embed import VectorOptions
from bertsmith.inference.evaluate import Evaluated
from bertsmith.inference.export.export import ExportOptions
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.server.limits import Limits
from bertsmith.recipes.loader import load_recipe
from bertsmith.tasks.plan import RowsOfRun
from bertsmith.tasks.reading.bad_rows import SkippedRows
from bertsmith.tasks.reading.records import Truncated
from bertsmith.tasks.settings import DistillSettings, FinetuneSettings
from bertsmith.training.planning.where import Where
from bertsmith.training.records.sinks import Outputs

Given = tuple[tuple[Any, ...], dict[str, Any]]

RUN_BY = "--device cuda:1 --precision fp16 --backend onnx"
RUN_BY_VALUES = {"device": "cuda:1", "precision": "fp16", "backend": "onnx"}
ROWS = "--workers 3 --gpus 2 --on-error skip --resume --part-rows 9"
ROWS_VALUES = RowOptions(3, "2", "skip", True, 9)
TEXTS = "--columns.text a --columns.no-header --columns.quoted"
TEXTS_VALUES: dict[str, Any] = {"text": "a", "header": False, "quoted": True}
PARTS = ("text_b", "question", "context", "id", "tokens", "tags", "choices")
LABELS = ("label", "label_separator", "answers", "tag_names", "spans", "negative")


def columns(*names: str) -> str:
    """Flags that name the column of each field after it."""
    return " ".join([TEXTS, *(f"--columns.{name.replace('_', '-')} its-{name}" for name in names)])


def values(*names: str) -> dict[str, Any]:
    """The same as fields of `Columns`."""
    return TEXTS_VALUES | {name: f"its-{name}" for name in names}


def called(monkeypatch: pytest.MonkeyPatch, function: str, call: str, gives: Any = None, status: int = 0) -> Given:
    """What a command gives to a function, "module:name" below bertsmith. gives: what it gets from that. status: its
    own."""
    module, name = function.split(":")
    found: list[Given] = []
    target = importlib.import_module(f"bertsmith.{module}")
    monkeypatch.setattr(target, name, lambda *args, **named: found.append((args, named)) or gives)
    assert main(call.split()) == status
    (only,) = found
    return only


def test_those_of_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    call = f"predict m rows.csv --out o.csv {RUN_BY} {ROWS} --n-best 4 --likelihood {columns(*PARTS)}"
    args, named = called(monkeypatch, "inference.predict_file:predict_file", call)
    assert args == (Path("m"), "rows.csv", "o.csv")
    given = {"rows": ROWS_VALUES, "top": 4, "likelihood": True, "columns": values(*PARTS)}
    assert named == RUN_BY_VALUES | given


@pytest.mark.parametrize(
    ("flags", "vectors"),
    [
        ("--max-length 12 --pooling cls --normalise", VectorOptions("cls", True, (), 12)),
        ("--no-normalise", VectorOptions(unit=False)),
        ("--layers -1,-2", VectorOptions(layers=(-1, -2))),
    ],
)
def test_those_of_embed(flags: str, vectors: VectorOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    call = f"embed m rows.csv --out o {RUN_BY} {ROWS} {flags} {TEXTS}"
    args, named = called(monkeypatch, "inference.embed_file:embed_file", call)
    assert args == (Path("m"), "rows.csv", "o")
    assert named == {**RUN_BY_VALUES, "rows": ROWS_VALUES, "columns": TEXTS_VALUES, "vectors": vectors}


MEASURED = Evaluated("classify", 1, Truncated(0, 0), {"accuracy": 0.5})


def test_those_of_evaluate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of rows, of a benchmark's folder, of pairs and of answers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    all_columns = columns(*PARTS, *LABELS)
    model, rows, folder = Path("m"), Path("rows.csv"), Path("folder")
    bad = "--skip-bad-rows bad.jsonl --bad-share 0.4"
    call = f"evaluate m --data rows.csv --report r --json figures.json {bad} {RUN_BY} {all_columns}"
    args, named = called(monkeypatch, "inference.evaluate:evaluate", call, MEASURED)
    assert args == (model, rows)
    given = {"report": Path("r"), "skipped": SkippedRows(0.4), "columns": values(*PARTS, *LABELS)}
    assert named == RUN_BY_VALUES | given
    assert {each.name for each in tmp_path.iterdir()} == {"folder", "figures.json", "bad.jsonl"}
    call = f"evaluate m --data folder --benchmark mrpc --submission s.zip --fold 2 {RUN_BY}"
    args, named = called(monkeypatch, "inference.evaluate_benchmark:evaluate_benchmark", call, MEASURED)
    assert args == (model, folder)
    assert named == {**RUN_BY_VALUES, "benchmark": "mrpc", "submission": Path("s.zip"), "fold": 2}
    pairs = f"evaluate m --minimal-pairs folder {RUN_BY}"
    found = called(monkeypatch, "inference.minimal_pairs:evaluate_minimal_pairs", pairs, MEASURED)
    assert found == ((model, folder), RUN_BY_VALUES)
    call = f"evaluate m.json --data rows.csv --null-scores n.json {all_columns}"
    args, named = called(monkeypatch, "inference.evaluate:evaluate_predictions", call, MEASURED)
    assert args == (Path("m.json"), rows)
    assert named == {"null_scores": Path("n.json"), "columns": values(*PARTS, *LABELS)}


FLAGS = {
    "--device": "cpu",
    "--precision": "bf16",
    "--backend": "onnx",
    "--benchmark": "mrpc",
    "--submission": "s.zip",
    "--fold": "1",
    "--report": "r",
    "--null-scores": "n.json",
    "--skip-bad-rows": "bad.jsonl",
    "--bad-share": "0.4",
    "--columns.text": "a",
}
DEVICE = ("--device", "--precision", "--backend")


@pytest.mark.parametrize(
    ("call", "measured", "read"),
    [
        ("m --minimal-pairs folder", "minimal pairs", DEVICE),
        ("m.json --data rows.csv", "a file of answers", ("--null-scores", "--columns.text")),
        ("m --data folder", "the folder of a benchmark", (*DEVICE, "--benchmark", "--submission", "--fold")),
        (
            "m --data rows.csv",
            "a file of rows",
            (*DEVICE, "--report", "--skip-bad-rows", "--bad-share", "--columns.text"),
        ),
    ],
)
def test_a_flag_of_evaluate_that_is_not_read_is_refused(
    call: str, measured: str, read: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for flag in FLAGS.keys() - set(read):
        assert main(["evaluate", *call.split(), flag, FLAGS[flag]]) == 2
        assert f"{flag.partition('.')[0]} is not read for {measured}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["--interactive", "--question who --context text"])
@pytest.mark.parametrize(
    "flag", ["--out o.csv", "--workers 2", "--gpus 1", "--on-error skip", "--resume", "--part-rows 3"]
)
def test_a_flag_of_predict_that_only_a_file_needs_is_refused(kind: str, flag: str, capsys: Any) -> None:
    assert main(["predict", "m", *kind.split(), *flag.split()]) == 2
    assert f"{flag.split()[0]} is not read without a file of rows" in capsys.readouterr().err


def test_those_of_export_and_import(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = f"--to triton --int8 --data d.csv --max-loss 0.2 --few-lengths --name n {columns(*PARTS, *LABELS)}"
    options = ExportOptions("triton", True, Path("d.csv"), 0.2, values(*PARTS, *LABELS), True, name="n")
    found = called(monkeypatch, "inference.export.export:export", f"export m --out o {flags}")
    assert found == ((Path("m"), Path("o"), options), {})
    call = "import c.pt --out o --vocab v.txt --config c.json --no-lowercase --activation relu"
    args, _ = called(monkeypatch, "weights.convert:import_checkpoint", call)
    assert args == (Path("c.pt"), Path("o"), Path("v.txt"), Path("c.json"), False, "relu")


def test_those_of_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve = pytest.importorskip("bertsmith.inference.server.serve")
    flags = f"--host 0.0.0.0 --port 81 --token t --limits.rows 7 {RUN_BY}"
    (settings,), _ = called(monkeypatch, "inference.server.serve:serve", f"serve a={tmp_path} {flags}")
    assert settings == serve.Settings({"a": tmp_path}, "0.0.0.0", 81, "t", **RUN_BY_VALUES, limits=Limits(rows=7))


def test_those_of_quickstart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = called(monkeypatch, "quickstart:quickstart", "quickstart --source a b --out o --budget tiny")
    assert found == ((("a", "b"), Path("o"), "tiny"), {})


TRAINED = SimpleNamespace(model=Path("o/model"))
RECORDS = "--dllogger l.json --wandb w --profile 3"
RECORDS_VALUES = Outputs(Path("l.json"), "w", 3)


def test_those_of_finetune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    files = "--model m --train t.csv --dev d.csv --test e.csv --data f --out o"
    flags = f"--hyper-parameters google --fold 2 --resume {RECORDS} --epochs 4 --device cpu"
    args, named = called(monkeypatch, "tasks.finetune:finetune", f"finetune classify {files} {flags}", TRAINED)
    assert args == ("classify", *(Path(each) for each in ("m", "t.csv", "d.csv", "o")))
    settings = replace(FinetuneSettings(), epochs=4, device="cpu")
    given = {"test": Path("e.csv"), "data": Path("f"), "hyper_parameters": "google", "fold": 2, "resume": True}
    assert named == {**given, "settings": settings, "outputs": RECORDS_VALUES}
    assert capsys.readouterr().out == "o/model\n"


def test_those_of_pretrain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--init-from i --also-evaluate a --resume {RECORDS} --phase1.steps 5 --device cpu"
    call = f"pretrain bert-tiny --corpus c --out o {flags}"
    args, named = called(monkeypatch, "training.pretrain:pretrain", call, TRAINED)
    recipe = replace(load_recipe("bert-tiny", ["--phase1.steps=5"]), device="cpu")
    assert args == (recipe, Path("c"), Path("o"))
    outputs = replace(RECORDS_VALUES, also_evaluate=Path("a"))
    assert named == {"resume": True, "init_from": Path("i"), "outputs": outputs}
    assert capsys.readouterr().out == "o/model\n"


@pytest.mark.parametrize(
    ("flag", "count"), [("--ranks 2", 2), ("--gpus 2", 2), ("--gpus 4", 4), ("--gpus all", 4)], ids=str
)
def test_those_of_each_rank(flag: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the command, with --quiet or --debug; it ends with the status of the ranks."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr("bertsmith.cli.ranks.default_workers", lambda: 8)
    monkeypatch.setattr("bertsmith.base.device.rank_threads", lambda ranks: 12 // ranks)
    call = f"pretrain bert-tiny --corpus c --out o --rank-timeout 77 {flag}"
    found = called(monkeypatch, "base.ranks.launcher:launch", f"--debug {call}", 75, status=75)
    command = [sys.executable, "-m", "bertsmith", *call.split(), "--debug"]
    assert found == ((command, count, 12 // count, 77.0), {})


@pytest.mark.parametrize(("flag", "device"), [("--ranks 1", "cpu"), ("--gpus 1", "cuda"), ("--rank-timeout 9", "auto")])
def test_one_rank_is_this_process_on_the_device_that_is_meant(
    flag: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    call = f"pretrain bert-tiny --corpus c --out o {flag}"
    (recipe, *_), _ = called(monkeypatch, "training.pretrain:pretrain", call, TRAINED)
    assert recipe.device == device


@pytest.mark.parametrize("of", ["rows", "corpus"])
def test_those_of_distill(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "classify --train t.csv --dev d.csv --test e.csv --data f --epochs 4 --student s"
    corpus = "--corpus c --student bert-mini --phase1.steps 5"
    call = f"distill {rows if of == 'rows' else corpus} --teacher m --out o --resume --device cpu"
    args, named = called(monkeypatch, "tasks.distill:distill", call, TRAINED)
    if of == "rows":
        assert args == (Path("m"), "s", Path("o"))
        parts = {"train": Path("t.csv"), "dev": Path("d.csv"), "test": Path("e.csv"), "data": Path("f")}
        settings = replace(DistillSettings(), epochs=4, device="cpu")
        assert named == {**parts, "task": "classify", "settings": settings, "resume": True}
    else:
        recipe = replace(load_recipe("bert-mini", ["--phase1.steps=5"]), device="cpu")
        assert args == (Path("m"), recipe, Path("o"))
        assert named == {"corpus": Path("c"), "resume": True}


PREPARED = "--workers 3 --held-out 0.1 --exclude x y --no-lowercase"


PREPARED_OPTIONS = PrepareOptions(workers=3, held_out=0.1, exclude=(Path("x"), Path("y")), lowercase=False)
BENCH = "bench predict --model m --only real --minutes 2 --markdown"
BENCH_OPTIONS = BenchOptions(model=Path("m"), only="real", minutes=2.0)


@pytest.mark.parametrize(
    ("call", "function", "gives", "args", "printed"),
    [
        (
            "download gutenberg --out d --books 84 7",
            "download.download:download",
            [Path("d/a"), Path("d/b")],
            ("gutenberg", Path("d"), DownloadOptions(books=(84, 7))),
            "d/a\nd/b\n",
        ),
        (
            "vocab a b --out o --size 700 --cased",
            "corpus.vocabularies:make_vocabulary",
            None,
            (("a", "b"), Path("o"), VocabularyOptions(size=700, cased=True)),
            "o\n",
        ),
        (
            f"prepare a b --out o --tokenizer t {PREPARED}",
            "corpus.prepare:prepare",
            SimpleNamespace(folder=Path("o")),
            (("a", "b"), Path("o"), ("tokenizer", Path("t")), ("options", PREPARED_OPTIONS)),
            "o\n",
        ),
        (
            "report a b --out o.html",
            "report.report:write_report",
            Path("o.html"),
            ((Path("a"), Path("b")), Path("o.html")),
            "o.html\n",
        ),
        (
            BENCH,
            "bench.run:run_bench",
            SimpleNamespace(as_markdown=lambda: "a table"),
            ("predict", BENCH_OPTIONS, ["bertsmith", *BENCH.split()]),
            "a table\n",
        ),
    ],
)
def test_those_of_verbs_without_a_model_to_train(
    call: str, function: str, gives: Any, args: tuple[Any, ...], printed: str, monkeypatch: Any, capsys: Any
) -> None:
    """And what they print for scripts."""
    found, named = called(monkeypatch, function, call, gives)
    assert (*found, *named.items()) == args
    assert capsys.readouterr().out == printed


def test_those_of_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[Any]()
    monkeypatch.setattr("bertsmith.cli.plan._tell", lambda flags, plan: told.append((flags.json, flags.png, plan)))
    where = "--gpu h100 --gpus 4 --price 2.5 --json j.json --png p.png"
    call = f"plan bert-tiny --corpus c --init-from i --phase1.steps 5 {where}"
    recipe = load_recipe("bert-tiny", ["--phase1.steps=5"])
    found = called(monkeypatch, "training.plan:plan_pretraining", call, "a plan")
    assert found == ((recipe, Path("c"), Where("h100", 4, 2.5), Path("i")), {})
    files = "--model m --train t.csv --dev d.csv --test e.csv --data f --hyper-parameters google --fold 2"
    call = f"plan classify {files} --epochs 4 {where}"
    found = called(monkeypatch, "tasks.plan:plan_finetuning", call, "a plan")
    rows = RowsOfRun(Path("t.csv"), Path("d.csv"), Path("e.csv"), Path("f"), "google", 2)
    assert found == (("classify", Path("m"), rows, Where("h100", 4, 2.5), replace(FinetuneSettings(), epochs=4)), {})
    assert told == [(Path("j.json"), Path("p.png"), "a plan")] * 2
