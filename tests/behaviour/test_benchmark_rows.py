"""The rules of benchmarks on their real files: every row is read, and every label is one of the reference's."""

from __future__ import annotations

from collections import Counter

import pytest

from bertsmith.tasks.benchmarks.benchmark import benchmarks
from bertsmith.tasks.reading.records import Columns, read_records, read_rows
from bertsmith.tasks.registry import TASKS

WHOLE = [
    *(("cola", part) for part in ("train", "dev", "test")),
    *(("sst2", part) for part in ("train", "dev", "test")),
    *(("mrpc", part) for part in ("train", "dev", "test")),
    *(("stsb", part) for part in ("train", "dev", "test")),
    *(("wnli", part) for part in ("train", "dev", "test")),
    *(("qnli", part) for part in ("dev", "test")),
    ("ax", "test"),
]
# Where only a part of the set is at hand, or it does not say how many rows it has.
PARTLY = {
    ("qqp", "train"): 2000,
    ("qqp", "dev"): 7600,
    ("mnli", "train"): 12808,
    ("mnli", "dev"): 7469,
    ("mnli", "dev_mismatched"): 1000,
    ("codah", "train"): 1665,
    ("codah", "dev"): 556,
    ("codah", "test"): 555,
}


def rows_of(data_folder, name, part):
    """The rows as they stand in the file; the task reads all of them too, with their labels where they have any."""
    benchmark = benchmarks()[name]
    path, columns = benchmark.find(data_folder, (part,))[part], Columns(**benchmark.columns_of(part))
    rows = [row for _, row in read_rows(path, columns)]
    records = read_records(rows, columns, part in benchmark.labelled, TASKS[benchmark.kind])
    assert len(records) == len(rows)
    return benchmark, benchmark.columns_of(part), rows


@pytest.mark.parametrize(("name", "part"), [*WHOLE, *PARTLY])
def test_every_row_is_read_and_has_its_columns(real_data, data_folder, name, part):
    real_data("glue" if name != "codah" else "swag/codah")
    benchmark, columns, rows = rows_of(data_folder, name, part)
    assert len(rows) == PARTLY.get((name, part), benchmark.rows.get(part))
    wanted = [columns["text"], *([columns["text_b"]] if "text_b" in columns else [])]
    wanted += columns["choices"].split(",") if "choices" in columns else []
    wanted += [columns["id"]] if "id" in columns else []
    assert all(row[column].strip() for row in rows for column in wanted)
    if part in benchmark.unlabelled:
        assert [row[columns["id"]] for row in rows] == [str(place) for place in range(len(rows))]
        return
    labels = Counter(row[columns["label"]] for row in rows)
    if benchmark.labels:
        assert set(labels) == set(benchmark.labels)
    elif name == "stsb":
        assert all(0 <= float(label) <= 5 for label in labels)
    else:
        assert set(labels) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("name", "part", "count"),
    [
        *(("wnut17", "train", 3394), ("wnut17", "dev", 1009), ("wnut17", "test", 1287)),
        *(("squad1", "train", 87599), ("squad1", "dev", 10570), ("squad2", "train", 8266), ("squad2", "dev", 3607)),
    ],
)
def test_every_sentence_and_question_is_read(real_data, data_folder, name, part, count):
    """WNUT-17 and SQuAD 1.1 are whole; of SQuAD 2.0 there are parts of its dev set."""
    real_data("squad" if name.startswith("squad") else "ner/wnut17")
    benchmark = benchmarks()[name]
    path = benchmark.find(data_folder, ("train", "dev"))[part]
    rows = [row for _, row in read_rows(path, Columns(**benchmark.columns_of(part)), reader=TASKS[benchmark.kind])]
    assert len(rows) == count
    if name == "squad2":
        assert {bool(row["answers"]) for row in rows} == {True, False}
    else:
        assert count == benchmark.rows[part]


def test_published_counts_of_labels(real_data, data_folder):
    """CoLA's 70.4% and MRPC's 67.4% of positive train rows, and WNLI's 56.34% of zeros on dev."""
    real_data("glue")
    for name, part, label, share in (
        ("cola", "train", "1", 0.704),
        ("mrpc", "train", "1", 0.674),
        ("wnli", "dev", "0", 0.5634),
    ):
        _, columns, rows = rows_of(data_folder, name, part)
        assert sum(row[columns["label"]] == label for row in rows) / len(rows) == pytest.approx(share, abs=5e-4)
