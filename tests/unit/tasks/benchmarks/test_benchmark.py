"""The file of benchmarks, and how their files are found in a folder."""

from importlib import resources

import pytest
import yaml

from bertsmith.base.errors import BertsmithError
from bertsmith.recipes.loader import _UniqueKeys
from bertsmith.tasks.benchmarks.benchmark import FILE, Benchmark, benchmarks, parse

NAMES = (
    "cola sst2 mrpc stsb qqp mnli qnli rte wnli ax squad1 squad2 swag codah wnut17 conll2003 chemprot "
    "bc5cdr-chemical bc5cdr-disease"
)
# (rows of a step, rate, epochs, share of warm-up) of the sources that the head of benchmarks.yaml names, for benchmarks
# that are trained by them. A wrong one would cost points of a score and nothing else would tell.
GLUE = "cola sst2 mrpc stsb qqp mnli qnli rte wnli"
PUBLISHED = {
    "google": {
        **dict.fromkeys(GLUE.split(), (32, 2e-5, 3, 0.1)),
        "squad1": (12, 3e-5, 2, 0.1),
        "squad2": (24, 3e-5, 2, 0.1),
        "swag": (16, 2e-5, 3, 0.1),
        **dict.fromkeys(("wnut17", "conll2003"), (32, 5e-5, 3, 0.1)),
    },
    "nvidia": {
        **dict.fromkeys(("cola", "mnli", "chemprot"), (128, 2.4e-5, 3, 0.1)),
        "sst2": (1024, 1e-5, 3, 0.1),
        "mrpc": (128, 1.8e-5, 3, 0.3),
        "squad1": (256, 4.6e-5, 2, 0.2),
        "swag": (12, 5e-6, 2, 0.1),
        **dict.fromkeys(("bc5cdr-chemical", "bc5cdr-disease"), (128, 5e-5, 10, 0.1)),
    },
    "authors": {"codah": (16, 2e-5, 3, 0.1)},
}
SMALL = """
toy:
  title: A toy
  kind: classify
  folders: [Toy]
  layouts: [{train: a.tsv, dev: b.tsv}]
  metrics: [accuracy]
"""


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")


def test_every_benchmark_is_there_once():
    text = resources.files("bertsmith.tasks.benchmarks").joinpath(FILE).read_text(encoding="utf-8")
    assert list(yaml.load(text, Loader=_UniqueKeys)) == list(benchmarks()) == NAMES.split()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + "  colour: red\n", "toy has no key 'colour'"),
        (SMALL + "  rows: 5\n", "toy: rows is 5; a dict is wanted"),
        (SMALL + "  unlabelled: [test]\n", "unlabelled names 'test', which no layout has"),
        (SMALL + "  trained_as: tyo\n", "trained_as is 'tyo'; did you mean 'toy'"),
        (SMALL.replace("dev:", "devv:"), "there is no part 'devv'; did you mean 'dev'"),
        (SMALL.replace("  kind: classify\n", ""), "toy lacks kind"),
        ("toy: 3\n", "toy is 3, not a section"),
    ],
)
def test_what_a_benchmark_cannot_say_is_refused(text, message):
    assert parse(SMALL)["toy"].parts == ("train", "dev")
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_the_order_of_labels_is_the_references():
    """PARITY of the outputs: Google's run_classifier.py and NVIDIA's processors/glue.py, biobert's run_re.py."""
    found = {name: each.labels for name, each in benchmarks().items() if each.labels}
    assert found["mnli"] == found["ax"] == ("contradiction", "entailment", "neutral")
    assert found["qnli"] == found["rte"] == ("entailment", "not_entailment")
    assert found["cola"] == found["sst2"] == found["mrpc"] == found["qqp"] == found["wnli"] == ("0", "1")
    assert found["chemprot"] == ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9", "false")


def test_hyper_parameters_rules_and_metrics_are_the_published_ones():
    names = ("batch", "learning_rate", "epochs", "warmup")
    found: dict = {source: {} for source in PUBLISHED}
    for name, each in benchmarks().items():
        for source, values in each.hyper_parameters.items():
            assert set(values) == set(names)
            found[source][name] = tuple(values[key] for key in names)
    assert found == PUBLISHED
    assert next(iter(benchmarks()["squad1"].hyper_parameters)) == "google", "they fit one device"
    squad = {"max_length": 384, "doc_stride": 128, "max_query_length": 64, "n_best": 20, "max_answer_length": 30}
    special = {name: {**squad, "unanswerable": name == "squad2"} for name in ("squad1", "squad2")}
    special["chemprot"] = {"max_length": 512, "negative_label": "false"}
    special |= {name: {"max_length": 128, "positive": "1"} for name in ("mrpc", "qqp")}
    metrics = {"mrpc": "accuracy binary_f1", "stsb": "pearson spearman", "mnli": "accuracy mismatched_accuracy"}
    metrics |= {"cola": "matthews", "ax": "matthews", "qqp": metrics["mrpc"], "chemprot": "micro_f1"}
    by_kind = {"classify": "accuracy", "choice": "accuracy", "qa": "f1 exact_match", "tag": "entity_f1"}
    for name, each in benchmarks().items():
        assert each.settings == special.get(name, {"max_length": 128}), name
        assert " ".join(each.metrics) == metrics.get(name, by_kind.get(each.kind)), name


def test_hyper_parameters_come_from_a_source_that_is_named():
    mrpc = benchmarks()["mrpc"]
    assert mrpc.hyper_parameters_of() == ("google", {"batch": 32, "learning_rate": 2e-5, "epochs": 3, "warmup": 0.1})
    assert mrpc.hyper_parameters_of("nvidia")[1]["learning_rate"] == 1.8e-5
    assert benchmarks()["bc5cdr-disease"].hyper_parameters_of()[0] == "nvidia"
    with pytest.raises(BertsmithError, match="'nvidia' has no hyper-parameters for rte") as caught:
        benchmarks()["rte"].hyper_parameters_of("nvidia")
    assert caught.value.fix == "use google"
    with pytest.raises(BertsmithError, match="no rows to train on") as caught:
        benchmarks()["ax"].hyper_parameters_of()
    assert "fine-tune mnli" in caught.value.fix


@pytest.mark.parametrize("place", [".", "MRPC", "glue/MRPC"])
def test_files_are_found_in_every_usual_place(tmp_path, place):
    make(tmp_path, f"{place}/train.tsv", f"{place}/dev.tsv")
    found = benchmarks()["mrpc"].find(tmp_path, ("train", "dev"))
    assert found == {part: tmp_path / place / f"{part}.tsv" for part in ("train", "dev")}


def test_the_parts_come_from_one_layout(tmp_path):
    """A subset's train rows are some of the whole dev set's, so the two must not be joined."""
    make(tmp_path, "squad/v2.0/dev-v2.0.json", "squad/v2.0/train-subset-v2.0.json", "squad/v2.0/dev-subset-v2.0.json")
    squad = benchmarks()["squad2"]
    names = {part: path.name for part, path in squad.find(tmp_path, ("train", "dev")).items()}
    assert names == {"train": "train-subset-v2.0.json", "dev": "dev-subset-v2.0.json"}
    assert squad.find(tmp_path, ("dev",))["dev"].name == "dev-subset-v2.0.json"
    make(tmp_path, "squad/v2.0/train-v2.0.json")
    assert squad.find(tmp_path, ("train", "dev"))["dev"].name == "dev-v2.0.json"


def test_a_missing_file_is_told_with_what_was_looked_for_and_found(tmp_path):
    make(tmp_path, "glue/QNLI/dev.tsv", "glue/QNLI/test.tsv", "notes.txt")
    qnli = benchmarks()["qnli"]
    assert set(qnli.find(tmp_path, ("dev",))) == {"dev", "test"}
    with pytest.raises(BertsmithError, match=r"qnli needs train\.tsv, dev\.tsv") as caught:
        qnli.find(tmp_path, ("train", "dev"))
    assert "looked in QNLI, glue/QNLI, ." in caught.value.what
    assert "there is glue/QNLI/dev.tsv, glue/QNLI/test.tsv" in caught.value.what
    assert "the folder holds glue/, notes.txt" in caught.value.what
    with pytest.raises(BertsmithError, match="not a folder"):
        qnli.find(tmp_path / "notes.txt", ("dev",))


def test_a_fold_is_a_folder_of_its_own(tmp_path):
    codah = benchmarks()["codah"]
    make(tmp_path, "data/cv_split/fold_3/train.tsv", "data/cv_split/fold_3/dev.tsv", "data/cv_split/fold_3/test.tsv")
    assert codah.find(tmp_path, ("train", "dev", "test"), fold=3)["test"].parent.name == "fold_3"
    with pytest.raises(BertsmithError, match="looked in codah/fold_0"):
        codah.find(tmp_path, ("train", "dev"))
    with pytest.raises(BertsmithError, match="there is no fold 5 of codah") as caught:
        codah.find(tmp_path, ("train",), fold=5)
    assert caught.value.fix == "use 0 to 4"
    with pytest.raises(BertsmithError, match="no fold 1 of mrpc"):
        benchmarks()["mrpc"].find(tmp_path, ("train",), fold=1)


def test_columns_are_those_of_the_files_in_the_order_of_the_reference():
    """Where two columns are exchanged, or one is left out, a model learns all the same, and worse or other things."""
    expected = {
        "cola": "4 - 2", "sst2": "sentence - label", "mrpc": "#1 String #2 String Quality",
        "stsb": "sentence1 sentence2 score", "qqp": "question1 question2 is_duplicate",
        "mnli": "sentence1 sentence2 gold_label", "qnli": "question sentence label",
        "rte": "sentence1 sentence2 label", "wnli": "sentence1 sentence2 label", "ax": "Premise Hypothesis Label",
        "swag": "sent1 sent2 label", "codah": "2 - 7", "chemprot": "sentence - label",
    }  # fmt: skip
    found = {name: each.columns_of("dev") for name, each in benchmarks().items() if each.columns}
    read = {name: [each.get(key, "-") for key in ("text", "text_b", "label")] for name, each in found.items()}
    assert {name: " ".join(each) for name, each in read.items()} == expected
    assert {name for name, each in found.items() if each["quoted"]} == {"swag", "chemprot"}
    in_test = benchmarks()["ax"].columns_of("test")
    assert (in_test["text"], in_test["text_b"]) == ("sentence1", "sentence2")


def test_a_file_that_other_rows_are_in_is_not_taken_for_a_part():
    mnli, conll = benchmarks()["mnli"], benchmarks()["conll2003"]
    assert mnli.submission == {"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"}
    assert conll.layouts[0] == {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}


def test_a_test_file_may_have_other_columns():
    cola = benchmarks()["cola"]
    assert cola.columns_of("train") == {"text": "4", "label": "2", "header": False, "quoted": False}
    assert cola.columns_of("test")["text"] == "sentence"
    assert cola.columns_of("test")["header"] is True
    assert cola.labelled == ("train", "dev")
    assert benchmarks()["mnli"].labelled == ("train", "dev", "dev_mismatched")
    assert isinstance(cola, Benchmark)
