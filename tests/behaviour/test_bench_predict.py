"""`bertsmith bench predict` at a tiny size: every side answers the same texts, and what is left out is named."""

from __future__ import annotations

import importlib
import importlib.util
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.predict.bench import LENGTHS, PEERS, _in_order, _measured, _sets, bench_predict
from bertsmith.bench.predict.side import BASELINE, BATCHES, PRECISIONS, Timer, groups_of, sides_of
from bertsmith.bench.predict.texts import TextSet, made_classifier, open_classifier, texts_of_length
from bertsmith.bench.process import OutOfTime, SideFailed
from bertsmith.cli import main
from bertsmith.inference.backends.exported import BACKENDS
from bertsmith.tokens.tokenizer import Tokenizer
from made_commands import called
from made_heads import made_head, made_short_classifier, needs_engines
from made_rows import PIECES, WORDS

pytestmark = pytest.mark.usefixtures("no_data", "forked_children")
LABELS = [side.label for side in sides_of(())]


@pytest.fixture
def real_texts(no_data: Path) -> None:
    """Two sentences and two paragraphs in the data folder."""
    sentences, questions = (no_data / name for name in ("glue/SST-2/dev.tsv", "squad/v1.1/dev-v1.1.json"))
    for each in (sentences, questions):
        each.parent.mkdir(parents=True)
    sentences.write_text("sentence\tlabel\na good film\t1\nnot one that i would see\t0\n")
    paragraphs = [{"context": "word " * count, "qas": []} for count in (30, 90)]
    questions.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


@needs_engines
@pytest.mark.parametrize("precision", ["fp32", pytest.param("", marks=pytest.mark.slow)])
def test_quick_times_every_backend_and_says_what_is_missing(precision: str, tmp_path: Path, capsys: Any) -> None:
    """In fp32; in every precision among the slow tests."""
    to = tmp_path / "rows.json"
    only = f"8 x 9 in {precision}"
    args = ["bench", "predict", "--quick", "--only", only, "--lengths", "9", "--against", "--json", str(to)]
    assert main(args) == 0
    found = json.loads(to.read_text())
    assert [row["side"] for row in found["rows"]] == [label for label in LABELS if label.endswith(precision)]
    assert "left out: real texts" in "\n".join(found["about"])
    for row in found["rows"]:
        assert row["case"] == "8 x 9"
        assert row["calls"] >= 1
        assert row["tokens_per_second"] == pytest.approx(9 * row["texts_per_second"])
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p95_ms"] <= row["p99_ms"]
    assert "8 x 9 tokens" in capsys.readouterr().out
    fastest = max(found["rows"], key=lambda row: row["texts_per_second"])["side"]
    assert f"fastest of ours here: {fastest} (8 x 9)" in found["about"]
    assert any(line.startswith("fastest of ours in fp32 here: ours, ") for line in found["about"])


@needs_engines
def test_one_precision_on_real_texts_together_and_one_by_one_as_far_as_the_model_of_a_run_reads_them(
    real_texts: None, tmp_path: Path
) -> None:
    options = BenchOptions(
        model=made_short_classifier(tmp_path / "run"), quick=True, only="in int8", lengths=(12,), against=()
    )
    report = bench_predict(options, tmp_path / "bench")
    real = "4 real texts of 5 to 12 tokens"
    cases = ["1 x 12", "8 x 12", "32 x 12", real, f"{real}, one by one"]
    sides = [label for label in LABELS if label.endswith("int8")]
    assert [(row["case"], row["side"]) for row in report.rows] == list(product(cases, sides))
    for row in report.rows[-4:]:
        assert row["tokens_per_second"] == pytest.approx((5 + 8 + 12 + 12) / 4 * row["texts_per_second"])
        assert row["calls"] >= (4 if "one by one" in row["case"] else 1)
        assert row["at_once"] == (1 if "one by one" in row["case"] else None)
    assert "left out" not in "\n".join(report.about)


def test_all_sides_read_the_same_of_a_long_text(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    peer = importlib.import_module("bertsmith.bench.predict.peer")
    model = made_short_classifier(tmp_path / "run")
    theirs = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    predictor = open_classifier(model, tmp_path / "for-all")
    assert {path: path.read_bytes() for path in theirs} == theirs, "the user's model stays as it is"
    text, spec = " ".join(WORDS), {"model": str(predictor.folder), "precision": "fp32"}
    ((answer,), (ours,)) = peer._pipeline(spec)([text], 1), predictor([text])
    assert answer["score"] == pytest.approx(ours["score"], abs=1e-6)
    assert ours["truncated_tokens"] == len(predictor.tokenizer.encode_ids([text])[0]) - 10
    # A graph that gives what it is given.
    rows = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [None, None]) for name in peer._INPUTS]
    given = onnx.helper.make_tensor_value_info("given", onnx.TensorProto.INT64, [None, None])
    node = onnx.helper.make_node("Identity", ["input_ids"], ["given"])
    graph = onnx.helper.make_graph([node], "given", rows, [given])
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)])
    onnx.save(model, tmp_path / "fp32.onnx")
    (((ids,),),) = peer._direct(spec | {"backend": "onnx", "padded": str(tmp_path)})([text], 1)
    assert len(ids) == predictor.max_length == 12


def test_the_lengths_that_are_given_are_measured(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)

    def measured(lengths: tuple[int, ...], longest: int) -> list[str]:
        sets, _ = _sets(BenchOptions(lengths=lengths), tokenizer, longest)
        return [each.name.removeprefix("1 x ") for each in sets if each.rows == 1]

    assert measured((), 512) == [str(length) for length in LENGTHS]
    assert measured((128, 512), 512) == measured((128, 512, 128), 512) == ["128", "512"]
    assert measured((), 128) == ["32", "128"]


@pytest.mark.parametrize("length", ["2", "13"])
def test_a_length_that_the_model_does_not_read_is_refused(length: str, tmp_path: Path, capsys: Any) -> None:
    model = str(made_short_classifier(tmp_path / "run"))
    assert main(["bench", "predict", "--quick", "--model", model, "--lengths", "12", length, "--against"]) == 2
    said = capsys.readouterr().err
    assert f"this model reads texts of 3 to 12 tokens, so there are none of {length}\n  where: --lengths" in said


@needs_engines
@pytest.mark.slow
def test_the_peers_are_timed_on_the_same_texts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    options = BenchOptions(quick=True, only="8 x 9", lengths=(9,))
    report = bench_predict(options, tmp_path)
    assert [row["side"] for row in report.rows] == [
        *LABELS, "pipeline, fp32", "pipeline, bf16", "onnx directly, fp32", "onnx directly, int8",
        "openvino directly, fp32", "openvino directly, bf16",
        *(["openvino directly, int8"] if importlib.util.find_spec("nncf") else []),
    ]  # fmt: skip
    (table,) = report.tables
    assert {row[-1] for row in table.rows if row[0] == "pipeline, fp32"} == {"1.00x"}


def test_the_sides_are_the_pairs_that_predict_takes() -> None:
    for backend, precisions in PRECISIONS.items():
        on_cpu = set(BACKENDS[backend]) - {"tf32", "fp16"}
        assert set(precisions) == on_cpu


def test_sides_of_one_precision_are_measured_together_with_what_they_are_compared_with() -> None:
    sides = sides_of(PEERS)
    groups = groups_of(sides)
    for precision, group in groups.items():
        assert {side for side in sides if side.precision == precision} | {BASELINE} == set(group)
        assert len(group) == len(set(group)) <= 7
    assert list(groups_of(sides_of(()))) == ["fp32", "bf16", "int8"]


def test_a_side_is_compared_with_the_pipeline_of_its_own_rounds() -> None:
    texts, (one, other) = TextSet("real", ["a", "b"], 2, [1, 1]), sides_of(())[:2]
    fast, slow = Turns(9, seconds=1.0), Turns(9, seconds=4.0)
    first = _measured(texts, "fp32", {one: fast, BASELINE: slow}, False, [])
    second = _measured(texts, "bf16", {other: Turns(9, seconds=1.0), BASELINE: Turns(9, seconds=2.0)}, False, [])
    rows = _in_order([*first, *second], ["real"], [one.label, other.label, BASELINE.label])
    assert [(row["side"], row["beside_pipeline"]) for row in rows] == [
        (one.label, 4.0), (other.label, 2.0), (BASELINE.label, 1.0)
    ]  # fmt: skip
    assert rows[-1]["p50_ms"] == 4000


def test_texts_have_exactly_the_length_that_they_are_named_by(tmp_path: Path) -> None:
    made_classifier(tmp_path / "model", quick=True)
    tokenizer = Tokenizer.load(tmp_path / "model")
    for batch in BATCHES:
        found = texts_of_length(tokenizer, 33, batch)
        assert {len(ids) + 2 for ids in tokenizer.encode_ids(found.texts)} == {33}
        assert len(found.texts) >= batch


def test_a_side_that_may_choose_takes_what_it_is_fastest_with() -> None:
    """The clock of a call is what it is given here: at 8 at once a call ends first."""
    given: list[int] = []
    timer = Timer(lambda texts, at_once: given.append(at_once), (1, 8, 32))
    timer._seconds = lambda texts, at_once: {1: 3.0, 8: 1.0, 32: 2.0}[at_once]  # type: ignore[method-assign]
    answer = timer.turn(["a"] * 5, rows=0, seconds=2.0, every=False)
    assert answer == {"seconds": [1.0, 1.0], "at_once": 8}


def test_every_call_gets_as_many_texts_as_it_should() -> None:
    given: list[list[str]] = []
    timer = Timer(lambda texts, at_once: given.append(texts), (1,))
    timer.turn(["a", "b", "c"], rows=2, seconds=0.0, every=False)
    timer.turn(["a", "b", "c"], rows=4, seconds=0.0, every=False)
    timer.turn(["a", "b", "c"], rows=2, seconds=0.0, every=True)
    assert given == [["a", "b"], ["a", "b", "c", "a"], ["a", "b"], ["c", "a"]]


class Turns:
    """A child whose turns take so many seconds, until there is no time for one more, or it fails."""

    def __init__(self, turns: int, failure: BertsmithError | None = None, seconds: float = 1.0) -> None:
        self.left, self.failure, self.seconds = turns, failure, seconds

    def ready(self) -> dict[str, Any]:
        return {"threads": 1}

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        self.left -= 1
        if self.left < 0:
            raise self.failure or OutOfTime
        return {"seconds": [self.seconds], "at_once": 0}


def test_whole_rounds_count_where_no_time_is_left_for_all() -> None:
    texts, (one, other) = TextSet("real", ["a", "b"], 2, [1, 1]), sides_of(())[:2]
    left_out: list[str] = []
    rows = _measured(texts, "fp32", {one: Turns(9), other: Turns(3)}, False, left_out)
    assert [row["calls"] for row in rows] == [2, 2]
    assert left_out == ["real in fp32: 3 of 5 rounds, for which no time was left"]
    with pytest.raises(OutOfTime):
        _measured(texts, "fp32", {one: Turns(9), other: Turns(1)}, False, [])


def test_a_side_that_fails_in_any_round_is_left_out() -> None:
    texts, (one, other) = TextSet("real", ["a", "b"], 2, [1, 1]), sides_of(())[:2]
    left_out: list[str] = []
    failing = {one: Turns(9), other: Turns(3, SideFailed("out of memory", ""))}
    rows = _measured(texts, "fp32", failing, False, left_out)
    assert [(row["side"], row["calls"]) for row in rows] == [(one.label, 5)]
    assert left_out == [f"real, {other.label}: out of memory"]
    assert _measured(texts, "fp32", {one: Turns(1, SideFailed("out of memory", ""))}, False, left_out) == []


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (BenchOptions(only="nothing", quick=True), "no case contains 'nothing'"),
        (BenchOptions(against=("tensorrt",), quick=True), "there is no 'tensorrt' to compare with"),
    ],
)
def test_what_is_not_there_is_refused(options: BenchOptions, what: str, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match=what):
        bench_predict(options, tmp_path / "bench")


def test_a_model_that_answers_no_single_texts_is_refused(tmp_path: Path) -> None:
    model = made_head("qa", tmp_path / "qa")
    with pytest.raises(BertsmithError, match="this model is of qa, and reads question, context"):
        bench_predict(BenchOptions(model=model, against=(), quick=True), tmp_path / "bench")


def test_the_profile_shares_out_all_of_the_time(real_texts: None, script: Any, monkeypatch: Any, capsys: Any) -> None:
    called(script("predict_profile"), monkeypatch, "fp32", "--quick")
    lines = capsys.readouterr().out.splitlines()
    operators = lines[next(place for place, line in enumerate(lines) if line.startswith("operator")) + 1 :]
    assert any(line.startswith("aten::addmm ") for line in operators)
    shares = [float(word.removesuffix("%")) for line in operators for word in line.split() if word.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
