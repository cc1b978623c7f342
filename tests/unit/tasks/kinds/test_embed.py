"""Embeddings: rows of pairs, what is refused, the figures of rows with and without scores, and answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.embedding.pooling import text_vectors
from bertsmith.tasks.embedding.ranking import NO_TEXT
from bertsmith.tasks.kinds.embed import Embed, _far_off, by_row, short_numbers
from bertsmith.tasks.reading.records import Columns, read_records
from bertsmith.tasks.sequences import pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import FolderFacts
from bertsmith.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
SETTINGS = FinetuneSettings()
LIKE = [{"text": "a b", "text_b": "b a"}, {"text": "c", "text_b": "c d"}, {"text": "e", "text_b": "e f"}]


def examples(rows, part="dev"):
    records = read_records(rows, reader=Embed)
    return replace(Embed().examples(records, TOKENIZER, 16), part=part)


def unit_vectors(count, width=4, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_each_text_is_a_sequence_of_its_own():
    found = examples([*LIKE[:2], {**LIKE[2], "negative": "g h"}])
    pieces = [" ".join(TOKENIZER.pieces[piece] for piece in ids) for ids in found.sequences.ids]
    assert pieces == [f"[CLS] {text} [SEP]" for text in ("a b", "b a", "c", "c d", "e", "e f", "g h")]
    assert found.units.tolist() == [0, 2, 4, 7]
    assert found.targets.tolist() == [[0, 1, NO_TEXT], [2, 3, NO_TEXT], [4, 5, 6]]


def test_equal_texts_have_one_number_but_for_case_and_white_space():
    rows = [{"text": "A  b", "text_b": "c"}, {"text": "a B", "text_b": "a b"}]
    assert examples(rows).targets.tolist() == [[0, 1], [0, 0]]


def test_empty_cells_are_no_text_and_no_score():
    (record,) = read_records([{**LIKE[0], "negative": "", "label": ""}], reader=Embed)
    assert (record.negative, record.label) == (None, None)


@pytest.mark.parametrize(
    ("row", "columns", "what"),
    [
        ({"text": "a"}, {}, "no column 'text_b'"),
        ({"text": "a", "text_b": " "}, {}, "column 'text_b' is empty"),
        ({**LIKE[0], "negative": "A B"}, {}, "one of the two texts that are alike"),
        ({**LIKE[0], "negative": "b  a"}, {}, "one of the two texts that are alike"),
        ({**LIKE[0], "label": "neutral"}, {}, "number such as 1234.5; a label of embed says how alike the two"),
        ({**LIKE[0], "label": "inf"}, {}, "'inf' is not a finite number"),
        ({**LIKE[0], "label": "1_000"}, {}, "'1_000' is not a number"),
        (LIKE[0], {"negative": "unlike"}, "no column 'unlike'"),
        ({**LIKE[0], "Score": "3.5"}, {}, "--columns.label 'Score'"),
        ({**LIKE[0], "similarity-score": 1}, {}, "--columns.label 'similarity-score'"),
        ({**LIKE[0], "label": "", "score": 3.5}, {}, "--columns.label 'score'"),
        ({**LIKE[0], "similarity": 0}, {"label": "score"}, "may say how alike the two texts are"),
    ],
)
def test_bad_rows_are_named(row, columns, what):
    with pytest.raises(BertsmithError, match="row 1") as caught:
        read_records([row], Columns(**columns), reader=Embed)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([{**LIKE[0], "label": 5}, {**LIKE[1], "label": 0}], "different labels"),
        ([{**LIKE[0], "label": 5}, LIKE[1]], "different labels"),
        (LIKE[:1], "one pair has no other"),
        ([{"text": "a", "text_b": "b"}, {"text": "A", "text_b": "c"}], "the same text,"),
        ([{"text": "a", "text_b": "b"}, {"text": "c", "text_b": "b"}], "the same text_b"),
    ],
)
def test_training_rows_that_are_no_pairs_of_like_texts_are_refused(rows, what):
    with pytest.raises(BertsmithError, match=what):
        Embed.of_records(read_records(rows, reader=Embed), SETTINGS)


def test_labels_that_are_all_the_same_are_not_used_and_that_is_logged(said):
    Embed.of_records(read_records([{**row, "label": 1} for row in LIKE], reader=Embed), SETTINGS)
    assert "labels of the training rows are all the same and are not used" in said.text


def test_the_description_counts_unlike_and_shared_texts():
    rows = [*LIKE, {"text": "C", "text_b": "h", "negative": "g"}]
    found = " ".join(Embed.of_records(read_records(rows, reader=Embed), SETTINGS).description())
    assert "4 pairs of like texts, 1 of them with an unlike one" in found
    assert "2 training rows have a text that stands in another row" in found
    assert "stands in another" not in " ".join(
        Embed.of_records(read_records(LIKE, reader=Embed), SETTINGS).description()
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"window_overlap": 8}, "set windows too"),
        ({"batch": 1}, "a step of 1 row"),
        ({"focal": 2.0}, "do not take focal"),
    ],
)
def test_settings_that_it_has_not_are_refused(changes, what):
    with pytest.raises(BertsmithError, match=what):
        Embed.check(replace(SETTINGS, **changes))


def test_the_vector_of_a_long_text_is_the_scaled_mean_of_its_windows():
    rows = [
        {"text": "a b c d e f g h", "text_b": "a", "label": 1},
        {"text": "b", "text_b": "h g f e d c b", "label": 0},
    ]
    records = read_records(rows, reader=Embed)
    task = Embed(overlap=1)
    assert Embed.of_folder(FolderFacts({}, task.facts(), TOKENIZER)).overlap == 1
    found = replace(task.examples(records, TOKENIZER, 6), part="dev")
    read = ["".join(PIECES[piece] for piece in ids[1:-1]) for ids in found.sequences.ids]
    assert read == ["abcd", "defg", "gh", "a", "b", "hgfe", "edcb"]
    assert found.sequences.truncated.rows == 0
    vectors = unit_vectors(7)
    joined = [vectors[:3].mean(0), vectors[3], vectors[4], vectors[5:].mean(0)]
    expected = np.stack([each / np.linalg.norm(each) for each in joined])
    assert text_vectors(vectors, found.sequences) == pytest.approx(expected, abs=1e-6)
    assert text_vectors(vectors, found.sequences)[1:3].tolist() == vectors[3:5].tolist()
    assert text_vectors(vectors, found.sequences, unit=False) == pytest.approx(np.stack(joined), abs=1e-6)
    members, unit = found.members(np.arange(2))
    inputs = pack(found.sequences, members, torch.device("cpu"), unit)
    table = by_row(torch.from_numpy(vectors), inputs, torch.from_numpy(found.targets))
    assert table.reshape(4, -1).numpy() == pytest.approx(expected, abs=1e-6)
    cosines = (expected[::2] * expected[1::2]).sum(1)
    answers = task.answers_of(vectors, records, found.sequences)
    assert [each["similarity"] for each in answers] == pytest.approx(cosines.tolist(), abs=1e-6)
    assert task.evaluate(vectors, found)["pearson"] == pytest.approx(pearsonr(cosines, [1, 0])[0])


def test_scores_are_measured_as_scipy_does():
    rows = [{"text": "a", "text_b": "b", "label": score} for score in (0, 1.5, 1.5, 5, 3, 2)]
    vectors = unit_vectors(12)
    cosines = (vectors[::2].astype(np.float64) * vectors[1::2]).sum(1)
    truths = [row["label"] for row in rows]
    expected = {"spearman": spearmanr(cosines, truths)[0], "pearson": pearsonr(cosines, truths)[0]}
    assert Embed().evaluate(vectors, examples(rows)) == pytest.approx(expected)
    assert Embed().baseline("spearman", examples(rows)) == 0


def test_pairs_without_scores_are_measured_by_the_rank_of_the_own_text():
    rows = [{**LIKE[0], "negative": "g"}, *LIKE[1:]]
    texts = np.eye(4, dtype=np.float32)
    # Anchor, like text, and of the first row an unlike one: ranks 1, 4 (one is nearer, two are as near), and 1.
    vectors = np.stack([texts[0], texts[0], texts[1], texts[1], texts[2], texts[3], texts[3]])
    assert Embed().evaluate(vectors, examples(rows)) == pytest.approx({"mrr": 2.25 / 3, "accuracy": 2 / 3})


def test_the_baseline_is_what_random_vectors_reach_on_average():
    rows = [{"text": f"{a} {b}", "text_b": f"{b} {a} h"} for a, b in zip("abcdefg", "bcdefga", strict=True)]
    made = examples(rows)
    found = [Embed().evaluate(unit_vectors(14, 8, seed), made) for seed in range(400)]
    for name in ("mrr", "accuracy"):
        assert np.mean([each[name] for each in found]) == pytest.approx(Embed().baseline(name, made), abs=0.03)


def test_which_rows_have_scores_decides_what_selects(tmp_path):
    scored = examples([{"text": "a", "text_b": "b", "label": score} for score in (0, 1)]).records
    plain, train = examples(LIKE).records, examples(LIKE, "train").records
    for dev, metric in ((scored, "spearman"), (plain, "mrr")):
        task = Embed().settled(tmp_path, {"train": train, "dev": dev}, SETTINGS)
        assert task.selecting(SETTINGS) == metric
    with pytest.raises(BertsmithError, match="'spearman' is for rows with scores"):
        Embed().selecting(replace(SETTINGS, metric="spearman"))
    for parts, settings, what in (
        ({"dev": scored, "test": plain}, SETTINGS, "the dev rows have scores and the test rows have none"),
        ({"dev": scored}, replace(SETTINGS, folds=5), "folds of these measure something else"),
        ({"dev": plain}, replace(SETTINGS, columns=Columns(label="score")), "no dev row has a score in column 'score'"),
    ):
        with pytest.raises(BertsmithError, match=what):
            Embed().settled(tmp_path, {"train": train, **parts}, settings)


def test_some_scores_in_a_file_are_refused():
    with pytest.raises(BertsmithError, match="row 2"):
        examples([{**LIKE[0], "label": 1}, LIKE[1]])


def test_scores_that_are_all_the_same_are_none():
    assert set(Embed().evaluate(unit_vectors(6), examples([{**row, "label": 5} for row in LIKE]))) == {
        "mrr",
        "accuracy",
    }


def test_a_text_gives_its_vector_and_two_their_cosine():
    rows = ["a", {"text": "b", "text_b": "c"}, {"text": "d"}]
    records = [Embed.record(row, Columns(), False, "") for row in rows]
    vectors = unit_vectors(4)
    first, second, third = Embed().answers_of(vectors, records, Embed().encode(records, TOKENIZER, 16))
    assert np.float32(first["embedding"]).tolist() == vectors[0].tolist()
    assert second == {"similarity": pytest.approx(float(vectors[1] @ vectors[2]))}
    assert np.float32(third["embedding"]).tolist() == vectors[3].tolist()
    assert [Embed().cells(each).keys() for each in (first, second)] == [Embed().cells(third).keys()] * 2


def test_numbers_are_written_so_that_they_are_the_same_fp32_again():
    numbers = np.random.default_rng(0).normal(size=5000).astype(np.float32) ** 9
    assert np.array_equal(np.float32(short_numbers(numbers)), numbers)


@pytest.mark.usefixtures("no_figures")
def test_the_report_names_the_pairs_that_are_furthest_from_the_order_of_their_scores(tmp_path: Path):
    rows = [{"text": f"a {'b ' * row}", "text_b": "c", "label": score} for row, score in enumerate([0, 1, 2, 2, 5])]
    cosines = np.array([0.1, 0.2, 0.9, 0.3, 0.4])
    vectors = np.zeros((10, 2), dtype=np.float32)
    vectors[::2, 0], vectors[1::2] = 1, np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    Embed(scored=True).write(vectors, examples(rows), tmp_path)
    found = json.loads((tmp_path / "likely_label_errors.json").read_text())["likely_label_errors"]
    # In the order of the cosines the third would have the highest score, and the last one of the two that are 2.
    assert [(each["where"], each["given"], each["suggested"]) for each in found] == [
        ("row 3", 2.0, 5.0),
        ("row 5", 5.0, 2.0),
    ]
    assert [each["cosine"] for each in found] == pytest.approx([0.9, 0.4], abs=1e-6)
    figures = json.loads((tmp_path / "intervals.json").read_text())["figures"]
    assert figures.keys() == {"spearman", "pearson"}
    assert figures["spearman"]["value"] == pytest.approx(spearmanr(cosines, [0, 1, 2, 2, 5]).statistic)


@pytest.mark.usefixtures("no_figures")
def test_the_report_names_pairs_whose_text_comes_late(tmp_path: Path):
    vectors = np.eye(4, dtype=np.float32)[[0, 0, 1, 2, 1, 3]]
    Embed().write(vectors, examples(LIKE), tmp_path)
    text = (tmp_path / "likely_label_errors.json").read_text()
    assert '"rank": 3' in text
    assert "row 1" not in text
    assert '"mrr"' in (tmp_path / "intervals.json").read_text()


def test_scores_far_from_the_place_of_their_cosine_are_doubts_the_farthest_first() -> None:
    cosines, scores = np.array([0.1, 0.9, 0.2, 0.5]), np.array([5.0, 0.0, 2.0, 4.0])
    found = [tuple(each.values()) for each in _far_off(cosines, scores)]
    assert found == [(0, 5.0, 0.0, 5.0, 0.1), (1, 0.0, 5.0, -5.0, 0.9)], "row, given, suggested, difference, cosine"
