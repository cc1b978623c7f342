"""Rows made by replacing words: only words, at the drawn places, by proposals; the same whatever else is made."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.distilling import augment
from bertsmith.tasks.distilling.augment import Made, Making, Proposer, make_rows, words_of
from bertsmith.tasks.kinds.masked_words import WordModel
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.task import Runner
from bertsmith.weights.huggingface import load_model, read_config
from made_students import PIECES, WORDS, made_bert, rows

MAKING = Making(3, 0.4, 5, 7, 32)


@pytest.fixture(scope="module")
def proposer(tmp_path_factory: pytest.TempPathFactory) -> Proposer:
    folder = made_bert(tmp_path_factory.mktemp("words"))
    model = load_model(WordModel, folder)
    return Proposer(model, load_tokenizer(folder, read_config(folder)), Runner(torch.device("cpu"), 256))


def records(count: int, seed: int = 1) -> list[Record]:
    return [Record(row["text"], None, row["label"], f"row {n}") for n, row in enumerate(rows(count, seed))]


def test_words_are_letters_with_all_their_pieces(proposer: Proposer) -> None:
    pair = proposer.tokenizer.encode_pair("Bamly 7 den! zzz", "gotly", 32)
    found = words_of(pair, proposer.tokenizer)
    assert [(each.segment, each.characters, each.end - each.first) for each in found] == [
        (0, (0, 5), 2),
        (0, (8, 11), 1),
        (1, (0, 5), 2),
    ]


def test_made_rows_replace_words_by_other_words_and_nothing_else(proposer: Proposer) -> None:
    made = make_rows(records(30), proposer, MAKING)
    assert len(made.rows) + made.equal == 3 * 30
    assert not made.wordless
    assert made.several > 0
    known = {*WORDS, "lovely", "awful"}
    for number, text, text_b in made.rows:
        before, after = records(30)[number].text.split(), text.split()
        assert text_b is None
        assert len(before) == len(after)
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert changed
        for old, new in changed:
            assert new.rstrip("!") in known - {old.rstrip("!")}
            assert new.endswith("!") == old.endswith("!")


def test_about_as_many_words_are_replaced_as_was_asked(proposer: Proposer) -> None:
    some = records(60)
    made = make_rows(some, proposer, replace(MAKING, count=4))
    changed = [
        np.mean([old != new for old, new in zip(some[n].text.split(), text.split(), strict=True)])
        for n, text, _ in made.rows
    ]
    # At least one word of each, so a little more than the share.
    assert 0.35 < float(np.mean(changed)) < 0.55


def test_a_row_s_draws_do_not_depend_on_what_else_is_made(proposer: Proposer) -> None:
    some = records(12)
    alone = make_rows(some[:5], proposer, MAKING)
    together = make_rows(some, proposer, MAKING)
    assert alone.rows == [each for each in together.rows if each[0] < 5]
    assert make_rows(some, proposer, MAKING).rows == together.rows
    assert make_rows(some, proposer, replace(MAKING, seed=8)).rows != together.rows
    fewer = set(make_rows(some, proposer, replace(MAKING, count=2)).rows)
    assert fewer <= set(together.rows), "a further row does not change the earlier ones"


def test_the_making_says_how_far_it_is(proposer: Proposer, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    class Recorded(augment.Progress):
        def __init__(self, what: str, total: int | None, unit: str = "") -> None:
            told.append((what, total, unit))
            super().__init__(what, total, unit)

        def advance(self, count: int, note: str = "") -> None:
            told.append(count)

    monkeypatch.setattr(augment, "Progress", Recorded)
    monkeypatch.setattr(augment, "_ROWS_AT_ONCE", 8)
    make_rows(records(20), proposer, MAKING)
    assert told == [("making rows", 20, "rows"), 8, 8, 4]


def test_proposals_are_the_likeliest_words_and_never_the_word_itself(proposer: Proposer) -> None:
    record = Record("bam denly kot", "fus giply", "x", "row 0")
    made = make_rows([record], proposer, replace(MAKING, count=200, share=0.01, top=3))
    pair = proposer.tokenizer.encode_pair(record.text, record.text_b, 32)
    pieces = proposer.tokenizer.pieces
    for place, word in enumerate(words_of(pair, proposer.tokenizer)):
        ids, kinds = (np.delete(each, slice(word.first + 1, word.end)) for each in (pair.ids, pair.type_ids))
        ids[word.first] = proposer.tokenizer.special.mask
        itself = int(pair.ids[word.first]) if word.end - word.first == 1 else -1
        best = [each for each in likeliest(proposer.model, ids, kinds, word.first) if proposer.words()[each]]
        allowed = [each for each in best if each != itself]
        masked = augment._masked([(pair, word)], proposer.tokenizer)
        assert proposer.proposals(masked, np.array([itself]), len(allowed)).tolist() == [allowed]
        own = (record.text + " " + (record.text_b or "")).split()
        seen = {each[place] for _, a, b in made.rows for each in [f"{a} {b}".split()] if each[place] != own[place]}
        assert seen == {pieces[each] for each in allowed[:3]}


def likeliest(model: PretrainingModel, ids: np.ndarray, kinds: np.ndarray, place: int) -> list[int]:
    with torch.no_grad():
        hidden = model.encoder.encode_padded(
            torch.from_numpy(ids)[None], torch.ones(1, len(ids), dtype=torch.int64), torch.from_numpy(kinds)[None]
        )
        logits = model.masked_logits(hidden[0], torch.tensor([place]))[0]
    return logits.argsort(descending=True).tolist()


def test_rows_without_words_and_equal_rows_are_counted(proposer: Proposer) -> None:
    some = [Record("7 7 !", None, "x", "row 0"), Record("bam", None, "x", "row 1")]
    made = make_rows(some, proposer, replace(MAKING, count=9, top=2))
    assert (made.wordless, len(made.rows), made.equal) == (1, 2, 7)
    assert made.line(2) == (
        "2 augmented rows made from 2 by replacing words; proposals for 1 word, 0 of them of several pieces that were "
        "masked as one; 7 dropped as duplicates of another made from the same row; 1 row without a word to replace"
    )
    assert make_rows(some[:1], proposer, MAKING) == Made(wordless=1)


def test_fewer_proposals_than_asked_for_are_said(proposer: Proposer, said: pytest.LogCaptureFixture) -> None:
    words = len(WORDS) + 2
    make_rows(records(2), proposer, replace(MAKING, top=words - 1))
    assert "proposals" not in said.text
    make_rows(records(2), proposer, replace(MAKING, top=words))
    assert (
        f"a word is replaced by one of {words - 1} proposals, not {words}: there are {words} whole words" in said.text
    )


@pytest.mark.parametrize("words", [[], ["bam"]])
def test_a_vocabulary_without_words_to_choose_from_is_refused(tmp_path: Path, words: list[str]) -> None:
    folder = made_bert(tmp_path, [*PIECES[:5], *words, "##am", "!", "7"])
    runner = Runner(torch.device("cpu"), 256)
    few = Proposer(load_model(WordModel, folder), load_tokenizer(folder, read_config(folder)), runner)
    with pytest.raises(BertsmithError, match=f"the vocabulary has {len(words)} words of letters") as caught:
        make_rows(records(2), few, MAKING)
    assert caught.value.where == "augment_model"


def test_words_past_the_model_s_length_stay(proposer: Proposer) -> None:
    record = Record(" ".join(["bam"] * 20), None, "x", "row 0")
    made = make_rows([record], proposer, replace(MAKING, share=1.0, max_length=10))
    assert all(text.split()[8:] == ["bam"] * 12 and "bam" not in text.split()[:8] for _, text, _ in made.rows)
