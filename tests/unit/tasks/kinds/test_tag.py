"""A tagger's rows, sequences, targets and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.tasks.kinds.tag import Tag, Tagger
from bertsmith.tasks.reading.records import Columns, read_records
from bertsmith.tasks.report.parts import DOUBTS_FILE, OUT_OF_FOLD
from bertsmith.tasks.sequences import pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.tagging.rows import TaggedRecord
from bertsmith.tasks.task import Examples, FolderFacts, Runner
from bertsmith.tokens.tokenizer import Tokenizer

LETTERS = "abcdefgh"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{each}" for each in LETTERS), "."]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
CONFIG = BertConfig(
    vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=64,
)  # fmt: skip
ROWS = [
    {"tokens": ["ab", "c", "def", "g"], "tags": ["B-x", "I-x", "O", "B-y"]},
    {"tokens": ["a", "\u200b", "b"], "tags": ["O", "B-x", "O"]},
]


def records(rows: list[Any], labelled: bool = True, **columns: str) -> list[TaggedRecord]:
    return [Tag.record(row, Columns(**columns), labelled, f"row {number}") for number, row in enumerate(rows, start=1)]


def task_of(rows: list[Any], **settings: Any) -> Tag:
    return Tag.of_records(records(rows), FinetuneSettings(**settings))


def examples(rows: list[Any], max_length: int = 32, **settings: Any) -> tuple[Tag, Examples]:
    task = task_of(rows, **settings)
    return task, task.examples(records(rows), TOKENIZER, max_length)


def scores_of(tags: list[list[str]], task: Tag, made: Examples, sure: float = 5.0) -> np.ndarray:
    """Scores under which every word that has a piece gets its tag, and other tokens get tags at random."""
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(int(made.sequences.lengths.sum()), len(task.names))).astype(np.float32)
    for each, slots in zip(tags, made.sequences.slots, strict=True):  # type: ignore[attr-defined]
        for tag, slot in zip(each, slots, strict=True):
            if slot >= 0:
                scores[slot] = 0
                scores[slot, task.names.index(tag)] = sure
    return scores


def test_the_classes_are_bio_whatever_the_rows_are_in() -> None:
    task = task_of(ROWS)
    assert task.names == ("O", "B-x", "I-x", "B-y", "I-y")
    assert task.counts == {"x": 2, "y": 1}
    iobes = task_of([{"tokens": "a b c", "tags": "B-x E-x S-y"}])
    assert iobes.names == task.names
    assert iobes.scheme is not None
    assert iobes.scheme.name == "IOBES"
    assert "IOBES" in " ".join(iobes.description())
    assert "entity 1" in " ".join(task_of([{"tokens": "a b", "tags": "B I"}]).description())


def test_rows_of_one_word_each_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    words = [{"tokens": word, "tags": tag} for word, tag in (("a", "B-x"), ("b", "I-x"), ("c", "O"))]
    task_of([*words, {"tokens": "a b", "tags": "O O"}])
    assert not caplog.records
    task_of(words)
    assert "each training row has one word" in caplog.text


def test_words_are_labelled_at_their_first_piece() -> None:
    task, made = examples(ROWS)
    (ids, other) = made.sequences.ids
    assert [PIECES[piece] for piece in ids] == ["[CLS]", "a", "##b", "c", "d", "##e", "##f", "g", "[SEP]"]
    assert [PIECES[piece] for piece in other] == ["[CLS]", "a", "b", "[SEP]"]
    assert made.targets[np.array([0])].tolist() == [-100, 1, -100, 2, 0, -100, -100, 3, -100]
    assert made.targets[np.array([1])].tolist() == [-100, 0, 0, -100]
    both = made.targets[np.array([1, 0])]
    assert both.tolist() == [-100, 0, 0, -100, -100, 1, -100, 2, 0, -100, -100, 3, -100]
    assert task.labels(both) == 6


def test_text_with_spans_gives_the_same_sequences_and_targets_as_words() -> None:
    _, by_words = examples(ROWS[:1])
    _, by_spans = examples([{"text": "ab c def g", "spans": [[0, 4, "x"], [9, 10, "y"]]}])
    assert [each.tolist() for each in by_words.sequences.ids] == [each.tolist() for each in by_spans.sequences.ids]
    assert by_words.targets[np.array([0])].tolist() == by_spans.targets[np.array([0])].tolist()


def test_every_word_of_a_long_sentence_is_labelled_once_in_the_window_that_has_its_slot() -> None:
    words = [*LETTERS * 9]
    tags = ["B-x" if word == "a" else "O" for word in words]
    task, made = examples([{"tokens": words, "tags": tags}], max_length=12, window_overlap=4)
    sequences = made.sequences
    assert (sequences.lengths == 12).all()
    assert sequences.rows.tolist() == [0] * len(sequences.ids)
    assert not sequences.lost_tokens.any()
    targets = made.targets[np.array([0])]
    assert task.labels(targets) == len(words)
    ids = np.concatenate(sequences.ids)
    (slots,) = sequences.slots  # type: ignore[attr-defined]
    assert [PIECES[piece] for piece in ids[slots]] == words
    assert [task.names[each] for each in targets[slots]] == tags
    assert len(set(slots.tolist())) == len(words)
    assert slots.tolist() == sorted(slots.tolist())
    scores = scores_of([tags], task, made)
    assert task.evaluate(scores, made)["entity_f1"] == 1
    (answer,) = task.answers_of(scores, made.records, sequences)
    assert answer["tags"] == tags


def test_the_overlap_of_windows_changes_nothing_of_a_short_sentence() -> None:
    for overlap in (0, 3, 99):
        _, made = examples(ROWS, window_overlap=overlap)
        assert [each.tolist() for each in made.sequences.ids] == [
            each.tolist() for each in examples(ROWS)[1].sequences.ids
        ]


def test_answers_are_entities_by_characters_with_tags_where_words_were_given() -> None:
    task, made = examples(ROWS)
    scores = scores_of([["B-x", "I-x", "O", "I-y"], ["O", "B-x", "O"]], task, made, sure=3.0)
    scores[made.sequences.slots[0][1], task.names.index("I-x")] = 2
    first, second = task.answers_of(scores, made.records, made.sequences)
    sure, less = (float(np.exp(score) / (np.exp(score) + 4)) for score in (3, 2))
    assert [{**each, "score": round(each["score"], 5)} for each in first["entities"]] == [
        {"label": "x", "start": 0, "end": 4, "text": "ab c", "score": round((sure + less) / 2, 5)},
        {"label": "y", "start": 9, "end": 10, "text": "g", "score": round(sure, 5)},
    ]
    assert first["tags"] == ["B-x", "I-x", "O", "B-y"]  # written as the entities are
    assert second == {"entities": [], "tags": ["O", "O", "O"]}  # a word without a piece is outside
    by_text = records([{"text": "ab c def g"}], labelled=False)
    encoded = task.encode(by_text, TOKENIZER, 32)
    (answer,) = task.answers_of(scores[: encoded.lengths.sum()], by_text, encoded)
    assert answer == {"entities": first["entities"]}


def test_figures_count_entities_and_words() -> None:
    task, made = examples(ROWS)
    found = task.evaluate(scores_of([["B-x", "I-x", "O", "O"], ["B-x", "B-x", "O"]], task, made), made)
    # Of 3 true entities one is found; two are answered. Of 7 words the fourth, fifth and sixth are wrong.
    assert found["precision"] == pytest.approx(1 / 2)
    assert found["recall"] == pytest.approx(1 / 3)
    assert found["entity_f1"] == pytest.approx(2 / 5)
    assert found["macro_f1"] == pytest.approx((2 / 4 + 0) / 2)
    assert found["tag_accuracy"] == pytest.approx(4 / 7)
    assert task.baseline("entity_f1", made) == 0
    assert task.baseline("tag_accuracy", made) == pytest.approx(3 / 7)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("part", "how"), [("dev", "highest losses"), (OUT_OF_FOLD, "confident learning")])
def test_tags_of_folds_are_doubted_by_confident_learning(part: str, how: str, tmp_path: Path) -> None:
    task, made = examples(ROWS)
    scores = scores_of([["B-x", "I-x", "O", "O"], ["B-x", "B-x", "O"]], task, made)
    task.write(scores, replace(made, part=part), tmp_path)
    assert how in files.read_json(tmp_path / DOUBTS_FILE)["found_by"]


def test_a_broken_span_is_trained_as_its_word_and_missed_in_the_score(said: pytest.LogCaptureFixture) -> None:
    rows = [{"text": "abc d", "spans": [[0, 2, "x"]]}, {"text": "abc d", "spans": [[0, 3, "x"]]}]
    task, made = examples(rows)
    assert (
        "spans that begin or end inside a word, trained as the whole word and missed in the score: 1; such" in said.text
    )
    assert "row 1 'ab' (0 to 2)" in said.text
    assert made.targets[np.array([0])].tolist() == made.targets[np.array([1])].tolist()
    figures = task.evaluate(scores_of([["B-x", "O"]] * 2, task, made), made)
    assert figures["entity_f1"] == pytest.approx(1 / 2)
    assert figures["tag_accuracy"] == 1


def test_a_type_that_training_rows_lack_is_counted_named_and_missed(said: pytest.LogCaptureFixture) -> None:
    task = task_of(ROWS)
    dev = records([{"tokens": ["a", "b"], "tags": ["B-x", "B-z"]}])
    made = task.examples(dev, TOKENIZER, 32)
    assert "entities of the type 'z', which no training row has, missed in the score: 1" in said.text
    assert "row 1 'b' (2 to 3)" in said.text
    assert task.labels(made.targets[np.array([0])]) == 1
    found = task.evaluate(scores_of([["B-x", "O"]], task, made), made)
    assert (found["precision"], found["recall"]) == (1, 1 / 2)
    assert found["tag_accuracy"] == 1 / 2


def test_tags_that_do_not_fit_the_scheme_are_counted_and_named(said: pytest.LogCaptureFixture) -> None:
    examples([*ROWS, {"tokens": ["a", "b", "c"], "tags": ["O", "I-x", "I-y"]}])
    assert "tags that do not fit BIO, read as conlleval reads them: 2" in said.text
    assert "row 3, word 2 I-x" in said.text


def test_rows_of_another_scheme_than_the_training_rows_are_held_to_their_own(said: pytest.LogCaptureFixture) -> None:
    task = task_of([{"tokens": "a b c", "tags": "I-x B-x O"}, {"tokens": "a b", "tags": "O I-y"}])
    assert task.scheme is not None
    assert task.scheme.name == "IOB1"
    task.examples(records([{"tokens": "a b", "tags": "O B-x"}]), TOKENIZER, 32)
    assert "rows with tags in BIO, where those of the training rows are in IOB1: 1; such as row 1" in said.text
    said.clear()
    task.examples(records([{"tokens": "a b", "tags": "I-x I-x"}]), TOKENIZER, 32)
    assert not said.text


def test_tags_of_other_words_are_in_no_scheme(said: pytest.LogCaptureFixture) -> None:
    """As where columns of two files were put together."""
    tags = ["B-x I-x I-x O", "O O B-y I-y", "O B-x O B-y"] * 20
    shifted = [*" ".join(tags).split()[1:], "O"]
    rows = [{"tokens": "a b c d", "tags": shifted[start : start + 4]} for start in range(0, len(shifted), 4)]
    task = task_of(rows)
    assert task.scheme is None
    assert not any("scheme of the tags" in line for line in task.description())
    task.examples(records(rows), TOKENIZER, 32)
    assert "tags that do not fit even BIO, the nearest scheme (are they of other words?)" in said.text
    right = [{"tokens": "a b c d", "tags": each} for each in tags]
    assert task_of([*right, *rows[:10]]).scheme is not None, "a few are faults of their words"


def test_words_without_a_piece_are_counted_and_named(said: pytest.LogCaptureFixture) -> None:
    examples(ROWS)
    assert "words without a piece, tagged O: 1; such as row 2, word 2 '\\u200b'" in said.text


def test_words_go_before_text_where_they_have_tags() -> None:
    row = {"text": "ab c", "spans": [[0, 2, "x"]], "tokens": ["ab", "c"], "tags": ["O", "B-y"]}
    assert records([row])[0].tags == ("O", "B-y")
    (by_span,) = records([{**row, "ner": 1}], tags="other")
    assert by_span.tags is None
    assert by_span.label[0].label == "x"
    assert records([{"text": "ab", "entities": [{"start": 0, "end": 2, "label": "x"}]}])[0].label[0].end == 2
    assert records(["ab c"], labelled=False)[0].text == "ab c"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tokens": ["a"], "label": "x"},
            "no column 'tags'; found: tokens, label\n.*\n.* name one with --columns.tags",
        ),
        ({"text": "a", "label": "x"}, "no column 'spans'; found: text, label\n.*\n.* name one with --columns.spans"),
        ({"words": ["a"]}, "no column 'tokens' of words and no column 'text'; found: words"),
        ({"text": "  ", "spans": []}, "column 'text' is empty"),
        ({"tokens": [], "tags": []}, "column 'tokens' is empty"),
        ({"tokens": ["a"], "tags": ["O", "O"]}, "column 'tags' has 2 tags for 1 word"),
        ({"tokens": ["a"], "tags": ["NN"]}, "'NN' is not a tag of a span"),
        ({"tokens": ["a\ud800"], "tags": ["O"]}, "half of a surrogate pair"),
        ({"text": "a b", "spans": [[0, 9, "x"]]}, "does not lie in the text"),
        (3, "this row is of type int"),
    ],
)
def test_bad_rows_say_what_is_wrong(row: Any, message: str) -> None:
    with pytest.raises(BertsmithError, match=message):
        read_records([row, row], reader=Tag)


def test_rows_without_an_entity_teach_nothing() -> None:
    with pytest.raises(BertsmithError, match="no training row has an entity"):
        task_of([{"tokens": ["a"], "tags": ["O"]}])


def test_a_folder_of_other_tags_is_refused_and_one_in_another_scheme_is_read() -> None:
    def facts(*names: str) -> FolderFacts:
        return FolderFacts({"id2label": {str(place): name for place, name in enumerate(names)}}, {}, TOKENIZER)

    assert Tag.of_folder(facts("O", "B-x", "E-x")).types == {"x"}
    unsaid = replace(facts("O", "B-x"), task={"window_overlap": None})
    assert Tag.of_folder(unsaid) == Tag.of_folder(facts("O", "B-x")), "as of texts that are cut"
    with pytest.raises(BertsmithError, match="does not tag entities: 'NN' is not a tag"):
        Tag.of_folder(facts("NN", "VB"))


def test_the_model_gives_the_same_scores_alone_and_in_a_batch() -> None:
    task, made = examples(ROWS)
    model = Tagger(CONFIG, len(task.names))
    initialise(model, 0.3, seed=0)
    model.eval()
    whole = Runner(torch.device("cpu"), 1000).scores(model, made.sequences, per_token=True)
    single = Runner(torch.device("cpu"), 1).scores(model, made.sequences, per_token=True)
    assert whole.shape == (13, 5)
    assert np.allclose(whole, single, atol=1e-5)


def test_the_loss_is_the_sum_over_labelled_words() -> None:
    task, made = examples(ROWS)
    model = Tagger(CONFIG, len(task.names))
    initialise(model, 0.3, seed=0)
    members, unit = made.members(np.array([1, 0]))
    inputs = pack(made.sequences, members, torch.device("cpu"), unit)
    targets = torch.from_numpy(made.targets[np.array([1, 0])])
    found = task.loss(model.eval(), inputs, targets)
    expected = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
    assert float(found.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert int(found.count) == 6


def test_types_that_differ_by_case_are_named(said: pytest.LogCaptureFixture) -> None:
    task_of([{"tokens": ["a", "b"], "tags": ["B-Person", "B-person"]}])
    assert "are classes of their own: 'Person' and 'person'" in said.text


def test_texts_without_a_mark_are_counted(said: pytest.LogCaptureFixture) -> None:
    """An empty cell may be of a text that nobody has looked at."""
    marked = {"text": "ab c", "spans": [{"start": 0, "end": 2, "label": "x"}]}
    task_of([marked, *[{"text": "c", "spans": each} for each in ("", [])]])
    assert "no entity is marked in 2 of 3 training rows" in said.text
    said.clear()
    task_of([marked, {"tokens": ["c"], "tags": ["O"]}])
    assert "no entity" not in said.text
