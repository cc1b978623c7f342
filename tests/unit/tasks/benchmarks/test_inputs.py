"""What a benchmark gives a run, and what is said of it."""

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.benchmarks.benchmark import benchmarks
from bertsmith.tasks.benchmarks.inputs import (
    BenchmarkChoice,
    benchmark_inputs,
    benchmark_settings,
    figure_prefix,
    tell_rows,
)
from bertsmith.tasks.kinds.choice import Choice
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.tag import Tag
from bertsmith.tasks.reading.records import Columns, read_records
from bertsmith.tasks.registry import TASKS
from bertsmith.tasks.settings import FinetuneSettings
from made_benchmarks import made_bc5cdr, made_chemprot, made_codah, made_conll2003, made_mnli, made_mrpc, made_swag


def records(reader, path, name, part="train"):
    return read_records(path, Columns(**benchmarks()[name].columns_of(part)), reader=reader)


@pytest.mark.parametrize(
    "name", [name for name, each in benchmarks().items() if each.kind in TASKS and not each.trained_as]
)
def test_all_values_are_settings_and_all_metrics_are_the_tasks(name):
    benchmark = benchmarks()[name]
    kind = TASKS[benchmark.kind]
    for source in benchmark.hyper_parameters:
        settings = benchmark_settings(name, source)
        assert kind.metric_of(settings) == benchmark.metrics[0]
        assert all(getattr(settings, key) == value for key, value in benchmark.hyper_parameters[source].items())
    own = [metric for metric in benchmark.metrics if not metric.startswith("mismatched_")]
    assert set(own) <= set(kind.metrics)


def test_settings_are_the_benchmarks_and_may_be_changed():
    settings = benchmark_settings("mrpc", seeds=5)
    assert settings == FinetuneSettings(
        batch=32, learning_rate=2e-5, epochs=3, warmup=0.1, max_length=128, metric="accuracy", positive="1",
        labels="0,1", seeds=5,
        columns=Columns(text="#1 String", text_b="#2 String", label="Quality", quoted=False),
    )  # fmt: skip
    assert benchmark_settings("mrpc", "nvidia").warmup == 0.3


def test_what_is_changed_is_said_and_what_is_not_comparable(tmp_path, said):
    made_mrpc(tmp_path)
    changed = benchmark_settings("mrpc", epochs=1, max_steps=9, device="cpu", seed=7, report=False, folds=3)
    inputs = benchmark_inputs("mrpc", BenchmarkChoice(tmp_path), {}, changed)
    assert inputs.kind == "classify"
    assert inputs.sources == {part: tmp_path / "MRPC" / f"{part}.tsv" for part in ("train", "dev")}
    assert "hyper-parameters of google: batch 32, learning_rate 2e-05, epochs 3, warmup 0.1 (or" in said.text
    assert "mrpc with epochs 1 (not 3), max_steps 9 (not 0): the score is not comparable" in said.text
    tell_rows("mrpc", {"train": 48, "dev": 408})
    assert "mrpc: train has 48 rows and the published one 3,668" in said.text
    assert "dev has" not in said.text


def test_unchanged_settings_are_said_to_be_nothing_else(tmp_path, said):
    made_mrpc(tmp_path)
    assert benchmark_inputs("mrpc", BenchmarkChoice(tmp_path), {}).settings == benchmark_settings("mrpc")
    assert "comparable" not in said.text


def test_the_parts_of_mnli_are_measured_by_their_names(tmp_path, said):
    made_mnli(tmp_path)
    inputs = benchmark_inputs("mnli", BenchmarkChoice(tmp_path), {})
    assert list(inputs.sources) == ["train", "dev", "mismatched"]
    assert [figure_prefix(part) for part in ("dev", "test", "dev_mismatched")] == ["", "test_", "mismatched_"]
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    assert list(benchmark_inputs("mnli", BenchmarkChoice(tmp_path), {}).sources) == ["train", "dev"]
    assert "the files of dev_mismatched are not there, so nothing is measured on them" in said.text


def test_a_benchmarks_rules_take_other_rows_too(tmp_path):
    rows = {"train": [{"text": "a"}], "dev": [{"text": "b"}]}
    assert benchmark_inputs("sst2", BenchmarkChoice(None), rows).sources == rows
    with pytest.raises(BertsmithError, match="the files of sst2 are not named"):
        benchmark_inputs("sst2", BenchmarkChoice(None), {"dev": rows["dev"]})
    with pytest.raises(BertsmithError, match="train and dev rows exclude each other"):
        benchmark_inputs("sst2", BenchmarkChoice(tmp_path), rows)
    with pytest.raises(BertsmithError, match="'classify' is not a benchmark") as caught:
        benchmark_inputs("classify", BenchmarkChoice(tmp_path), {})
    assert ", wnut17. Or give files of rows" in caught.value.fix


def test_relations_are_read_with_their_marks_and_quotes(tmp_path):
    """ChemProt's rules: a row is a sentence with two marked entities; quotes are those of a csv library."""
    made_chemprot(tmp_path)
    files = benchmarks()["chemprot"].find(tmp_path, ("train", "dev", "test"))
    found = records(Classify, files["train"], "chemprot")
    assert len(found) == 40
    assert all("@CHEMICAL$" in each.text and "@GENE$" in each.text for each in found)
    assert '@CHEMICAL$ "word1"\nword2 @GENE$' in found[1].text
    assert (found[1].id, found[1].label) == ("1.T1.T9", "CPR:4")
    task = Classify.of_records(found, benchmark_settings("chemprot"))
    assert task.names == benchmarks()["chemprot"].labels
    assert task.negative == "false"
    stray = read_records([{"text": "a", "label": "CPR:10"}, {"text": "b", "label": "false"}])
    with pytest.raises(BertsmithError, match="the label 'CPR:10' is not one of"):
        Classify.of_records(stray, benchmark_settings("chemprot"))


def test_swags_endings_continue_their_start(tmp_path):
    made_swag(tmp_path)
    files = benchmarks()["swag"].find(tmp_path, ("train", "dev"))
    found = records(Choice, files["dev"], "swag", "dev")
    assert (len(found), len(found[0].choices), found[0].text_b) == (40, 4, "word2")
    assert ", word1 ." in found[0].text
    assert "lovely" in found[0].choices[found[0].label]


def test_codahs_columns_have_no_names(tmp_path):
    made_codah(tmp_path, fold=2)
    found = records(Choice, benchmarks()["codah"].find(tmp_path, ("test",), 2)["test"], "codah", "test")
    assert (len(found), found[0].text_b) == (40, None)
    assert all("lovely" in each.choices[each.label] for each in found)


def test_entities_have_their_columns(tmp_path):
    """BioBERT's layout of BC5CDR without types, and CoNLL-2003's with four columns and marks of documents."""
    made_bc5cdr(tmp_path)
    found = records(Tag, benchmarks()["bc5cdr-chemical"].find(tmp_path, ("train", "dev"))["dev"], "bc5cdr-chemical")
    assert len(found) == 20
    task = Tag.of_records(found, benchmark_settings("bc5cdr-chemical"))
    assert sum(task.counts.values()) == 20
    made_conll2003(tmp_path)
    path = benchmarks()["conll2003"].find(tmp_path, ("train",))["train"]
    task = Tag.of_records(records(Tag, path, "conll2003"), benchmark_settings("conll2003"))
    assert task.counts == {"PER": 2, "LOC": 1}
    assert set(task.names) == {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}
