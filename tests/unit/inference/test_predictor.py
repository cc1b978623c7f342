"""Predictions: right, in the order of the rows, from a folder alone."""

import csv
import errno
import io
import json
from dataclasses import asdict

import numpy as np
import pytest
import safetensors.torch
import torch

from bertsmith import Embedder
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.evaluate import evaluate
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.pooled import Classifier, config_labels
from bertsmith.tasks.reading.records import Columns
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import FolderContents, save_encoder, save_model, save_pretraining_model
from made_heads import KINDS, made_head

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
CONFIG = BertConfig(
    vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16,
)  # fmt: skip
TEXTS = ["a b", "c", "h g f e d c b a", "d d d", "a", "b c d e"]


@pytest.fixture
def tokenizer(tmp_path):
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    tokenizer.save(tmp_path / "tokenizer")
    return tokenizer


@pytest.fixture
def classes(tmp_path, tokenizer):
    model = Classifier(CONFIG, 3)
    initialise(model, 0.3, seed=0)
    config = config_labels(["bad", "fair", "good"])
    save_model(model, FolderContents(Classify.architectures[0], tokenizer.save, config), tmp_path / "classes")
    return tmp_path / "classes"


@pytest.fixture
def masks(tmp_path, tokenizer):
    model = PretrainingModel(CONFIG)
    initialise(model, 0.3, seed=0)
    save_pretraining_model(model, tmp_path / "tokenizer", tmp_path / "masks")
    return tmp_path / "masks"


def logits_of(theirs, tokenizer, text):
    ids = [2, *tokenizer.encode_ids([text], literal_specials=True)[0].tolist(), 3]
    with torch.no_grad():
        return theirs(torch.tensor([ids])), ids


def test_classes_equal_transformers_in_the_order_of_the_rows(classes, tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(classes).eval()
    assert theirs.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    predictor = Predictor(classes, "cpu", precision="fp32", budget_tokens=12)
    for text, ours in zip(TEXTS, predictor(TEXTS), strict=True):
        expected = logits_of(theirs, tokenizer, text)[0].logits[0].softmax(-1).tolist()
        assert list(ours["scores"].values()) == pytest.approx(expected, abs=1e-5)
        assert ours["score"] == max(ours["scores"].values())
        assert ours["label"] == ["bad", "fair", "good"][int(np.argmax(expected))]


def test_guesses_for_every_mask_equal_transformers(masks, tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(masks).eval()
    rows = ["a [MASK] c", "[MASK] [MASK]", "b c d e f [MASK] a b"]
    for text, ours in zip(rows, Predictor(masks, "cpu", precision="fp32", top=4)(rows), strict=True):
        out, ids = logits_of(theirs, tokenizer, text)
        places = [place for place, number in enumerate(ids) if number == 4]
        assert len(ours["guesses"]) == len(places)
        for place, guesses in zip(places, ours["guesses"], strict=True):
            best = out.logits[0, place].softmax(-1).topk(4)
            assert [each["piece"] for each in guesses] == [PIECES[number] for number in best.indices]
            assert [each["probability"] for each in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_a_row_without_a_mask_or_with_one_out_of_reach_is_named(masks):
    predictor = Predictor(masks, "cpu")
    with pytest.raises(BertsmithError, match="no \\[MASK\\]") as caught:
        predictor(["a [MASK]", "a b"])
    assert caught.value.where == "row 2"
    with pytest.raises(BertsmithError, match="past the tokens"):
        predictor(["a " * 20 + "[MASK]"])


def test_no_rows_give_no_predictions(classes, masks):
    assert Predictor(classes, "cpu")([]) == []
    assert Predictor(masks, "cpu")([]) == []


class Table:
    """As pandas has it: its names come out where rows are wanted."""

    columns = ("text", "id")

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize("rows", [Table(), None, 5, b"a b", {"a"}, np.array("a")], ids=lambda rows: type(rows).__name__)
def test_what_is_no_list_of_rows_is_refused(classes, rows):
    for answer in (Predictor(classes, "cpu"), Embedder(classes, "cpu"), lambda rows: evaluate(classes, rows)):
        with pytest.raises(BertsmithError, match="which is no list of rows") as caught:
            answer(rows)
        assert ("to_dict" in caught.value.fix) == isinstance(rows, Table)


@pytest.mark.parametrize(
    "option",
    [
        *({"top": wrong} for wrong in (0, -1, "5", 2.5, True)),
        *({"budget_tokens": wrong} for wrong in (0, -1, "x", 10.5)),
        *({"columns": wrong} for wrong in ("text", "", ["text"])),
        {"device": None},
        {"backend": None},
    ],
    ids=str,
)
def test_an_option_of_another_kind_is_named(masks, option):
    (name,) = option
    with pytest.raises(BertsmithError, match=f"^{name} ") as caught:
        Predictor(masks, **{"device": "cpu", **option})
    assert caught.value.fix
    found = Predictor(masks, "cpu", top=np.int64(1), budget_tokens=np.int64(64))
    assert found(["a [MASK]"])
    assert json.dumps(found.facts), "which a file of answers records"


def test_a_bare_encoder_predicts_nothing_and_says_so(tmp_path, tokenizer):
    save_encoder(PretrainingModel(CONFIG).encoder, tmp_path / "tokenizer", tmp_path / "bare")
    with pytest.raises(BertsmithError, match="BertModel, which predicts nothing"):
        Predictor(tmp_path / "bare", "cpu")


def test_a_classifier_without_its_head_is_refused(classes):
    tensors = safetensors.torch.load_file(classes / "model.safetensors")
    del tensors["classifier.weight"]
    del tensors["classifier.bias"]
    safetensors.torch.save_file(tensors, classes / "model.safetensors")
    with pytest.raises(BertsmithError, match=r"missing:    classifier\.bias"):
        Predictor(classes, "cpu")


def test_a_multi_label_model_gives_the_labels_that_reach_a_half(classes, tokenizer):
    transformers = pytest.importorskip("transformers")
    config = json.loads((classes / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (classes / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(classes).eval()
    for text, ours in zip(TEXTS, Predictor(classes, "cpu", precision="fp32")(TEXTS), strict=True):
        expected = logits_of(theirs, tokenizer, text)[0].logits[0].sigmoid().tolist()
        assert list(ours["scores"].values()) == pytest.approx(expected, abs=1e-5)
        assert ours["labels"] == [name for name, each in ours["scores"].items() if each >= 0.5]


def test_jsonl_in_and_out_keeps_rows_and_order(classes, tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    assert predict_file(classes, source, tmp_path / "out.jsonl", device="cpu", precision="fp32").rows == len(TEXTS)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = Predictor(classes, "cpu", precision="fp32")(TEXTS)
    assert [(line["id"], line["text"]) for line in lines] == list(enumerate(TEXTS))
    for line, prediction in zip(lines, expected, strict=True):
        assert line["prediction"]["label"] == prediction["label"]
        assert line["prediction"]["scores"] == pytest.approx(prediction["scores"], abs=1e-6)


def test_csv_in_and_out_adds_columns(classes, tmp_path):
    source = tmp_path / "rows.csv"
    source.write_text('text,note\n"a, b",x\nc,"two\nlines"\n')
    predict_file(classes, source, tmp_path / "out.csv", device="cpu")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["text"], row["note"]) for row in rows] == [("a, b", "x"), ("c", "two\nlines")]
    assert all(row["predicted_label"] in ("bad", "fair", "good") for row in rows)


@pytest.mark.parametrize("kind", [*KINDS, "likelihood"])
def test_a_table_has_all_that_lines_of_json_have(kind, tmp_path):
    scored = kind == "likelihood"
    made = "masked words" if scored else kind
    model, source, rows = made_head(made, tmp_path / "model"), tmp_path / "rows.jsonl", KINDS[made][3]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for out in ("out.jsonl", "out.csv"):
        predict_file(model, source, tmp_path / out, device="cpu", precision="fp32", likelihood=scored)
    answers = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with open(tmp_path / "out.csv", newline="") as file:
        table = list(csv.DictReader(file))
    for answer, row, found in zip(answers, rows, table, strict=True):
        for name, value in answer.items():
            cell = found.pop(name if name == "truncated_tokens" else f"predicted_{name}")
            assert cell == (value if isinstance(value, str) else "" if value is None else json.dumps(value))
        assert not any(value for name, value in found.items() if name not in row)  # nothing else


def test_standard_input_to_standard_output(masks, monkeypatch, capsys):
    rows = io.BytesIO(b'{"text": "a [MASK]"}\n{"text": "[MASK] b"}\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(rows))
    assert predict_file(masks, "-", "-", device="cpu").rows == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["a [MASK]", "[MASK] b"]
    assert all(len(line["prediction"]["guesses"][0]) == 5 for line in lines)


def test_a_bad_row_leaves_an_earlier_file(classes, tmp_path):
    (tmp_path / "out.jsonl").write_text("earlier")
    (tmp_path / "rows.csv").write_text("text\na\nb\n \n")
    with pytest.raises(BertsmithError, match="empty") as caught:
        predict_file(classes, tmp_path / "rows.csv", tmp_path / "out.jsonl", device="cpu")
    assert caught.value.where == f"{tmp_path / 'rows.csv'}:4"
    assert (tmp_path / "out.jsonl").read_text() == "earlier"
    with pytest.raises(BertsmithError, match="written as jsonl or csv"):
        predict_file(classes, tmp_path / "rows.csv", tmp_path / "out.parquet")


def test_columns_of_another_name(classes):
    predictor = Predictor(classes, "cpu", precision="fp32", columns=Columns(text="body"))
    assert predictor([{"body": "a b"}]) == Predictor(classes, "cpu", precision="fp32")(["a b"])
    with pytest.raises(BertsmithError, match="no column 'body'; found: text"):
        predictor([{"text": "a b"}])


def test_a_file_without_the_models_column_is_told_which_one_it_reads(classes, tmp_path):
    (tmp_path / "rows.csv").write_text("body,id\na,1\n")
    with pytest.raises(BertsmithError, match="no column 'text'") as caught:
        predict_file(classes, tmp_path / "rows.csv", tmp_path / "out.jsonl", device="cpu")
    assert caught.value.fix == "found: body, id; name one with --columns.text, in Python Columns(text=...)"


def test_a_tokenizer_larger_than_the_model_is_refused(masks):
    Tokenizer.from_vocabulary([*PIECES, "i"], lowercase=True).save(masks)
    with pytest.raises(BertsmithError, match="14 pieces and the model 13") as caught:
        Predictor(masks, "cpu")
    assert caught.value.where == str(masks)


@pytest.mark.parametrize(
    ("task", "what"),
    [
        ([], "no JSON object"),
        ({"columns": {"texts": "body"}}, "did you mean 'text'"),
        ({"columns": []}, "not an object"),
        ({"max_length": "128"}, "max_length is '128'"),
        ({"max_length": 0}, "max_length is 0"),
        ({"window_overlap": "32"}, "window_overlap is '32'"),
        ({"window_overlap": -1}, "window_overlap is -1"),
    ],
)
def test_a_task_file_that_describes_no_task_is_named(classes, task, what):
    (classes / "task.json").write_text(json.dumps(task))
    with pytest.raises(BertsmithError, match=what) as caught:
        Predictor(classes, "cpu")
    assert caught.value.where == str(classes / "task.json")
    assert caught.value.fix


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_classes_of_one_name_are_refused_for_one_would_be_lost(classes, problem):
    config = json.loads((classes / "config.json").read_text())
    named = {"id2label": {"0": "bad", "1": "good", "2": "good"}, "problem_type": problem}
    (classes / "config.json").write_text(json.dumps({**config, **named}))
    with pytest.raises(BertsmithError, match="2 classes of this model have the name 'good'") as caught:
        Predictor(classes, "cpu")
    assert caught.value.where == str(classes / "config.json")
    assert "id2label" in caught.value.fix


def test_a_config_with_the_number_of_classes_alone_is_read(classes):
    config = json.loads((classes / "config.json").read_text())
    (expected,) = Predictor(classes, "cpu")(["a"])
    unnamed = {name: value for name, value in config.items() if name not in ("id2label", "label2id")}
    (classes / "config.json").write_text(json.dumps({**unnamed, "num_labels": 3}))
    (found,) = Predictor(classes, "cpu")(["a"])
    assert found["scores"] == dict(zip(("LABEL_0", "LABEL_1", "LABEL_2"), expected["scores"].values(), strict=True))


@pytest.mark.parametrize("architectures", [None, [], "BertModel", {"of": "BertModel"}])
def test_a_config_that_names_no_class_is_said(classes, architectures):
    config = json.loads((classes / "config.json").read_text())
    (classes / "config.json").write_text(json.dumps({**config, "architectures": architectures}))
    with pytest.raises(BertsmithError, match="no architecture") as caught:
        Predictor(classes, "cpu")
    assert ("name its class in architectures" in caught.value.fix) is not bool(architectures)


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv"])
def test_a_column_that_cannot_be_written_is_named_by_row(classes, tmp_path, out):
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "id": "x"}\n{"text": "b", "id": "\\ud800"}\n')
    with pytest.raises(BertsmithError, match="surrogate") as caught:
        predict_file(classes, tmp_path / "rows.jsonl", tmp_path / out, device="cpu")
    assert caught.value.where == f"{tmp_path / 'rows.jsonl'}:2"
    assert not (tmp_path / out).exists()


def test_an_input_that_may_not_be_read_is_not_taken_for_the_output(classes, tmp_path, monkeypatch):
    source = tmp_path / "rows.csv"
    source.write_text("text\na\n")
    really_open = open

    def forbidding(path, *args, **options):
        if path == source:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really_open(path, *args, **options)

    monkeypatch.setattr("builtins.open", forbidding)
    with pytest.raises(BertsmithError, match=r"cannot be read .*Permission denied") as caught:
        predict_file(classes, source, tmp_path / "out.jsonl", device="cpu")
    assert caught.value.where == str(source)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_a_kind_of_model_does_not_read_is_refused_with_the_kinds_that_do(kind, tmp_path):
    folder = made_head(kind, tmp_path / "model")
    predictor = Predictor(folder, "cpu")
    columns = ("text", "text_b", "question", "context", "answers", "tokens", "tags", "spans", "choices", "negative")
    for name in columns:
        if "other" in predictor.reader.used(Columns(**{name: "other"})):
            assert getattr(Predictor(folder, "cpu", columns={name: "other"}).columns, name) == "other"
        else:
            flag = f"--columns.{name.replace('_', '-')}"
            with pytest.raises(BertsmithError, match=rf"^{predictor.kind} models do not take {flag}\n") as caught:
                Predictor(folder, "cpu", columns={name: "other"})
            assert caught.value.fix.startswith("leave it out; it is for ")
            assert predictor.kind not in caught.value.fix.split("it is for ")[1].removesuffix(" models").split(" and ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_of_best_answers_is_refused_by_kinds_that_list_none(kind, tmp_path):
    folder, row = made_head(kind, tmp_path / "model"), KINDS[kind][3][0]
    (answer,) = Predictor(folder, "cpu")([row])
    if not {"nbest", "guesses"} & answer.keys():
        with pytest.raises(BertsmithError, match="models do not take --n-best") as caught:
            Predictor(folder, "cpu", top=1)
        assert caught.value.fix == "leave it out; it is for qa and masked words models"
    else:
        (answer,) = Predictor(folder, "cpu", top=1)([row])
        assert len(answer.get("nbest") or answer["guesses"][0]) == 1


def test_all_columns_may_be_given_where_those_that_are_not_read_stay_as_they_were(classes):
    for body in (Columns(text="body"), asdict(Columns(text="body"))):
        assert Predictor(classes, "cpu", columns=body)([{"body": "a"}])
    for wrong in (Columns(question="q"), {"question": "q"}):
        with pytest.raises(BertsmithError, match="classify models do not take"):
            Predictor(classes, "cpu", columns=wrong)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--n-best", "5"], "classify models do not take --n-best"),
        (["--columns.context", "a"], "classify models do not take --columns.context"),
        (["--columns.tokens", "b"], "classify models do not take --columns.tokens"),
    ],
)
def test_a_flag_of_another_kind_of_model_is_one_message_and_status_2(classes, tmp_path, capsys, flags, names):
    (tmp_path / "rows.csv").write_text("text\na\n")
    out = tmp_path / "out.jsonl"
    call = ["predict", str(classes), str(tmp_path / "rows.csv"), "--out", str(out)]
    assert main([*call, "--device", "cpu", *flags]) == 2
    said = capsys.readouterr().err
    assert names in said
    assert str(classes) in said
    assert "leave it out; it is for" in said
    assert "Traceback" not in said
    assert not out.exists()


@pytest.mark.parametrize("flag", ["label", "label-separator", "answers", "tag-names", "spans", "negative"])
def test_columns_of_labels_are_for_evaluate(classes, tmp_path, capsys, flag):
    (tmp_path / "rows.csv").write_text("text\na\n")
    assert main(["predict", str(classes), str(tmp_path / "rows.csv"), f"--columns.{flag}", "x"]) == 2
    assert f"there is no flag --columns.{flag}" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("kind", ["regress", "choice"])
def test_where_a_report_is_is_logged(kind, tmp_path, said):
    rows = [{**row, "label": number % 2} for number, row in enumerate(KINDS[kind][3])]
    evaluate(made_head(kind, tmp_path / "model"), rows, report=tmp_path / "report", device="cpu")
    assert f"report: {tmp_path / 'report'}" in said.messages
    assert (tmp_path / "report" / "intervals.json").is_file()
