"""A user's own file is enough: task, columns and dev rows are found in it, and what is wrong with it is named."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import bertsmith
import made_questions
from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli import main
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.evaluate import evaluate
from bertsmith.inference.predict_file import predict_file
from bertsmith.tasks.reading import documents
from bertsmith.tasks.reading.records import Columns
from made_rows import QUICK, rows
from made_runs import signalled_after

LAYERS = 1

ROWS = rows(100, 1)
FAST = replace(QUICK, epochs=1)
CALL = ["--epochs=1", "--batch=16", "--max-length=32", "--device=cpu", "--precision=fp32", "--learning-rate=3e-3"]
CALL += ["--no-report"]


def table(made: list[dict[str, Any]], separator: str = ",", ends: str = "\n") -> str:
    """Rows as csv."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(made[0]), delimiter=separator, lineterminator=ends)
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def renamed(made: list[dict[str, str]], **names: str) -> list[dict[str, str]]:
    return [{name: row[old] for name, old in names.items()} for row in made]


def test_one_file_is_enough(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [{"nr": f"{number}", **row} for number, row in enumerate(renamed(ROWS, Review="text", Mood="label"))]
    path, run = written(tmp_path / "own.csv", table(own)), tmp_path / "run"
    call = ["finetune", "--model", str(model), "--train", str(path), "--out", str(run), *CALL, "--columns.label=Mood"]
    assert main(call) == 0
    said = capsys.readouterr().err
    for line in (
        "task: classify (2 different labels in 'Mood')",
        "text is column 'Review' (a usual name of it)",
        f"columns of {path} that are not used: nr",
        "rows of train (20%, by label, 100 different texts; seed 42)",
        f"  {path}:",
    ):
        assert line in said
    result = json.loads((run / "finetune.json").read_text())
    assert result["rows"]["train"] + result["rows"]["dev"] == 100
    assert abs(result["rows"]["dev"] - 20) < 2
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert (recipe["task"], recipe["dev_share"]) == ("classify", 0.2)
    assert (recipe["columns"]["text"], recipe["columns"]["label"]) == ("Review", "Mood")
    facts = json.loads((run / "run.json").read_text())
    assert facts["settings.columns.text"] == "Review"
    assert len(facts["dev_rows"]) == 64
    assert main([*call, "--resume"]) == 0, "the same command infers the same"
    assert "this run is finished already" in capsys.readouterr().err
    path.write_text(path.read_text() + "100,word1 lovely,praise\n")
    assert main([*call, "--resume"]) == 2
    (tmp_path / "new.csv").write_text("Review\nword1 lovely\n")
    assert main(["predict", str(run), str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.jsonl")]) == 0


def test_every_form_of_the_same_rows_gives_the_same_run(model: Path, tmp_path: Path) -> None:
    forms: dict[str, Callable[[Path], object]] = {
        "plain.csv": lambda path: written(path, table(ROWS)),
        "mark.csv": lambda path: written(path, "\ufeff" + table(ROWS)),
        "windows.csv": lambda path: written(path, table(ROWS, ends="\r\n")),
        "semicolons.csv": lambda path: written(path, table(ROWS, ";")),
        "tabs.tsv": lambda path: written(path, table(ROWS, "\t")),
        "packed.csv.gz": lambda path: written(path, gzip.compress(table(ROWS).encode())),
        "wide.csv": lambda path: written(path, table(ROWS).encode("utf-16")),
        "lines.jsonl": lambda path: written(path, "".join(json.dumps(row) + "\n" for row in ROWS)),
        "list.json": lambda path: written(path, json.dumps(ROWS)),
        "rows.parquet": _parquet,
    }
    found = []
    for name, write in forms.items():
        write(tmp_path / name)
        result = bertsmith.finetune("auto", model, tmp_path / name, None, tmp_path / f"{name}.run", settings=FAST)
        facts = json.loads((tmp_path / f"{name}.run" / "run.json").read_text())
        found.append((result.task, result.rows, result.scores, facts["dev_rows"]))
    assert all(each == found[0] for each in found), found
    assert found[0][0] == "classify"


def _parquet(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]}), path)


def test_numbers_make_a_regression_and_whole_ones_classes(model: Path) -> None:
    numbers = {"praise": 1.5, "blame": 0.25}
    own = [{"text": row["text"], "score": numbers[row["label"]]} for row in ROWS]
    assert bertsmith.finetune("auto", model, own, None, None, settings=FAST).task == "regress"
    own = [{"text": row["text"], "score": {1.5: 1.0, 0.25: 2.0}[numbers[row["label"]]]} for row in ROWS]
    result = bertsmith.finetune("auto", model, own, None, None, settings=FAST)
    assert (result.task, set(result.class_counts)) == ("classify", {"1", "2"})


def conll(path: Path) -> Path:
    """Sentences of words with tags; "lovely" and "awful" are entities."""
    tags = {"lovely": "B-praise", "awful": "B-blame"}
    sentences = ["".join(f"{word}\t{tags.get(word, 'O')}\n" for word in row["text"].split()) for row in ROWS]
    return written(path / "words.conll", "\n".join(sentences))


def squad(path: Path) -> Path:
    """Two questions about every row."""
    paragraphs = []
    for number, row in enumerate(ROWS):
        word = "lovely" if "lovely" in row["text"] else "awful"
        answer = {"text": word, "answer_start": row["text"].index(word)}
        ids = (f"{number}.{place}" for place in range(2))
        qas = [{"id": each, "question": f"word{each[-1]}", "answers": [answer]} for each in ids]
        paragraphs.append({"context": row["text"], "qas": qas})
    return written(path / "questions.json", json.dumps({"data": [{"title": "rows", "paragraphs": paragraphs}]}))


def choices(path: Path) -> Path:
    """Rows with a column for each choice."""
    made = [
        {"startphrase": row["text"], "ending0": "lovely", "ending1": "awful", "label": int(row["label"] == "blame")}
        for row in ROWS
    ]
    return written(path / "choices.csv", table(made))


@pytest.mark.parametrize(
    ("make", "kind", "dev_rows"),
    [(conll, "tag", (19, 20, 21)), (squad, "qa", range(30, 50, 2)), (choices, "choice", (19, 20, 21))],
)
def test_every_kind_is_inferred_from_one_file(
    model: Path,
    tmp_path: Path,
    said: pytest.LogCaptureFixture,
    make: Callable[[Path], Path],
    kind: str,
    dev_rows: range,
) -> None:
    result = bertsmith.finetune("auto", model, make(tmp_path), None, None, settings=FAST)
    assert result.task == kind
    assert f"task: {kind} (" in said.text
    assert result.rows["dev"] in dev_rows
    assert "have the text of" not in said.text


def test_groups_stay_together(model: Path, tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    own = [{**row, "patient": f"p{number % 25}"} for number, row in enumerate(ROWS)]
    settings = replace(FAST, columns=Columns(group="patient"), dev_share=0.3)
    result = bertsmith.finetune("classify", model, own, None, None, settings=settings)
    assert result.rows["dev"] % 4 == 0
    assert "25 groups by column 'patient'" in said.text
    settings = replace(settings, columns=Columns(group="doctor"))
    with pytest.raises(BertsmithError, match="no training row has a value in column 'doctor'"):
        bertsmith.finetune("classify", model, own, None, None, settings=settings)


def test_rows_of_both_parts_and_contradictions_are_named(
    model: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    dev = [{**ROWS[3], "text": ROWS[3]["text"].upper() + " "}, *rows(20, 2)]
    other = {"praise": "blame", "blame": "praise"}[ROWS[7]["label"]]
    train = written(tmp_path / "train.csv", table([*ROWS, {**ROWS[7], "label": other}]))
    dev_file = written(tmp_path / "dev.csv", table(dev))
    bertsmith.finetune("classify", model, train, dev_file, None, settings=FAST)
    assert "1 of 21 dev rows have the text of train rows" in said.text
    assert f"{dev_file}:2 is {train}:5" in said.text
    assert "training rows give 1 text several labels" in said.text
    assert f"{train}:9 is labelled {ROWS[7]['label']}, {train}:102 {other}" in said.text


def test_dev_rows_that_are_the_training_rows_are_warned_about(model: Path, said: pytest.LogCaptureFixture) -> None:
    bertsmith.finetune("classify", model, ROWS, ROWS, None, settings=FAST)
    assert "the dev rows are the train rows" in said.text
    assert "100 of 100 dev rows have the text of train rows" in said.text


def test_bad_rows_are_collected(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "own.csv", table(ROWS) + ",praise\nword1,\na,b,c\n")
    call = ["finetune", "classify", "--model", str(model), "--train", str(path), "--out", str(tmp_path / "run"), *CALL]
    assert main(call) == 2
    assert main([*call, "--skip-bad-rows", str(tmp_path / "bad.jsonl")]) == 0
    assert "3 bad rows left out" in capsys.readouterr().err
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [each["where"] for each in bad] == [f"{path}:{line}" for line in (102, 103, 104)]
    assert [each["row"] for each in bad] == [{"text": "", "label": "praise"}, {"text": "word1", "label": ""}, "a,b,c"]
    assert sum(json.loads((tmp_path / "run" / "finetune.json").read_text())["rows"].values()) == 100


def test_labels_that_differ_in_every_row_are_taken_where_they_are_few_numbers_or_said_to_be_classes(
    model: Path,
) -> None:
    few = [{"text": f"word{number}", "label": f"id{number}"} for number in range(12)]
    for task, train, settings in (
        ("classify", few[:9], FAST),
        ("classify", few, replace(FAST, many_labels=True)),
        ("classify", few, replace(FAST, labels=",".join(row["label"] for row in few))),
        ("regress", [{**row, "label": row["label"][2:]} for row in few], FAST),
    ):
        assert bertsmith.finetune(task, model, train, train, None, settings=settings).rows["train"] == len(train)


def test_ten_rows_train(model: Path) -> None:
    result = bertsmith.finetune("auto", model, ROWS[:10], None, None, settings=FAST)
    assert result.rows == {"train": 8, "dev": 2}


def test_an_extra_column_in_dev_does_not_matter(model: Path) -> None:
    dev = [{"source": "x", **row} for row in rows(20, 2)]
    assert bertsmith.finetune("auto", model, ROWS, dev, None, settings=FAST).rows["dev"] == 20


TABLE = table(ROWS)
PRAISE = "text,label\n" + "".join(f"word{number} lovely,praise\n" for number in range(20))

IDS = "text,label\n" + "".join(f"word{number % 30} word{number // 30},id{number}\n" for number in range(60))


@pytest.mark.parametrize(
    ("train", "dev", "flags", "what"),
    [
        (TABLE, None, ["--columns.text=body"], "there is no column 'body'"),
        (TABLE, None, ["--columns.label=mood"], "there is no column 'mood'"),
        (TABLE, None, ["--columns.group=patient"], "no training row has a value in column 'patient'"),
        (TABLE, PRAISE + "word1,mixed\n", [], "dev.csv:22"),
        (TABLE + ",praise\n", None, [], "train.csv:102: column 'text' is empty"),
        (TABLE, PRAISE + '" ",praise\n', [], "dev.csv:22: column 'text' is empty"),
        (PRAISE, None, [], "a classifier needs two labels, and these rows have 1 label"),
        ("text,label\nword1,praise\n", None, [], "no row can go to dev"),
        ("text,label\n", None, [], "there are no rows"),
        ("tokens,tags\nAnn sleeps,O O\n", None, [], "no training row has an entity"),
        (IDS, None, [], "each of the 60 training rows has a label of its own, such as 'id0', like an id"),
        (IDS, IDS, [], "name the column of the classes with --columns.label"),
        (IDS.replace("id", ""), IDS, ["--columns.label=label", "classify"], "name the task regress"),
        (IDS.replace("id", ""), IDS, [], "if these are ids, another column with --columns.label"),
        ("text,label\n,praise\n,blame\n", None, ["--skip-bad-rows=bad.jsonl"], "2 of 2 rows cannot be used"),
        (TABLE + ",praise\n" * 101, None, ["--skip-bad-rows=bad.jsonl"], "101 of 201 rows cannot be used"),
        (TABLE, PRAISE.split("\n", 1)[1], [], "no column of the training rows; they have: word0 lovely"),
        (TABLE.split("\n", 1)[1], None, [], "the first line looks like a row"),
        (TABLE, PRAISE, ["--dev-share=0.1"], "give --dev or --dev-share, not both"),
        (TABLE, None, ["--dev-share=1.5"], "dev_share is 1.5"),
        (TABLE, None, ["--dev-share=0.001"], "no row can go to dev"),
        ("text,label\n" + "word1 lovely,praise\n" * 9, None, [], "9 rows, of 1 different text"),
    ],
)
def test_wrong_input_is_named_and_leaves_nothing_behind(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    train: str, dev: str | None, flags: list[str], what: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "train.csv", train)
    call = ["finetune", "--model", str(model), "--train", "train.csv", "--out", "run", *CALL, *flags]
    if dev is not None:
        written(tmp_path / "dev.csv", dev)
        call += ["--dev", "dev.csv"]
    assert main(call) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "bad.jsonl").exists()


def test_a_stopped_run_continues_on_the_same_split(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written(tmp_path / "own.csv", table(renamed(ROWS, Review="text", Mood="label")) + ",praise\n")
    settings = replace(FAST, epochs=3, save_every=2, columns=Columns(label="Mood"), skip_bad_rows=str(tmp_path / "bad"))
    whole = bertsmith.finetune("auto", model, own, None, tmp_path / "whole", settings=settings)
    with monkeypatch.context() as patch:
        signalled_after(7, patch)
        with pytest.raises(StoppedAfterSaving):
            bertsmith.finetune("auto", model, own, None, tmp_path / "run", settings=settings)
    again = bertsmith.finetune("auto", model, own, None, tmp_path / "run", settings=settings, resume=True)
    assert again.seeds == whole.seeds
    settings = replace(settings, dev_share=0.3)
    with pytest.raises(BertsmithError, match="dev_share"):
        bertsmith.finetune("auto", model, own, None, tmp_path / "run", settings=settings, resume=True)


def test_a_file_of_json_is_parsed_once_by_each_verb(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to be parsed to its end for its first row."""
    parsed: Counter[str] = Counter()

    def counted(raw: bytes, name: str, strict: bool) -> Any:
        parsed[Path(name).name] += 1
        return parse(raw, name, strict)

    parse = documents.parse_json
    monkeypatch.setattr(documents, "parse_json", counted)
    train = written(tmp_path / "train.json", json.dumps(made_questions.squad(made_questions.questions(60, 1))))
    dev = written(tmp_path / "dev.json", json.dumps(made_questions.squad(made_questions.questions(20, 2))))
    run = bertsmith.finetune("qa", model, train, dev, tmp_path / "run", settings=replace(FAST, report=False))
    assert parsed == {"train.json": 1, "dev.json": 1}
    assert run.model is not None
    evaluate(run.model, dev, device="cpu")
    assert parsed["dev.json"] == 2
    predict_file(run.model, dev, tmp_path / "answers.jsonl", device="cpu")
    assert parsed["dev.json"] == 3
    embed_file(run.model, dev, tmp_path / "vectors.npy", columns={"text": "context"}, device="cpu")
    assert parsed["dev.json"] == 4
