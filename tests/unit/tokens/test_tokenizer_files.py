"""What the files of a tokenizer's folder say, each read alone and beside others."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Engine

from bertsmith.base.errors import BertsmithError
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import train_vocabulary

SENTENCES = ["The quick brown fox jumps over the lazy dog.", "Straße, café, 東京 and 北京: words of the world."]


@cache
def trained() -> Tokenizer:
    return train_vocabulary(SENTENCES * 3, 320)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trained().save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def changed_json(folder: Path, **changes: Any) -> dict[str, Any]:
    """What is in its tokenizer.json, after changes to it."""
    path = folder / "tokenizer.json"
    state: dict[str, Any] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(state))
    return state


def test_a_vocabulary_of_windows_lines_is_that_of_plain_ones(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_bytes(vocabulary.read_bytes().replace(b"\n", b"\r\n"))
    assert Tokenizer.load(folder).sha256 == trained().sha256


def test_only_line_feeds_end_a_piece(folder: Path) -> None:
    pieces = [*trained().pieces, "\x85", "\u2028", "##\x1c"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8", newline="")
    assert Tokenizer.load(folder / "vocab.txt").pieces == pieces


@pytest.mark.parametrize(
    "config",
    [{"strip_accents": True, "do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}],
)
def test_a_config_is_followed_alike_beside_either_file(folder: Path, config: dict[str, bool]) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    found = {Tokenizer.load(each).sha256 for each in (folder, folder / "vocab.txt")}
    assert len(found) == 1
    assert found != {trained().sha256}


def test_what_a_config_says_by_null(folder: Path) -> None:
    """Of accents that they go with the casing, as transformers has it; else that the other file says."""
    from transformers import AutoTokenizer

    path = folder / "tokenizer_config.json"
    path.write_text('{"do_lower_case": null, "tokenize_chinese_chars": null}')
    assert Tokenizer.load(folder).sha256 == trained().sha256
    cased = {**changed_json(folder)["normalizer"], "lowercase": False, "strip_accents": True}
    changed_json(folder, normalizer=cased)
    path.write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false, "strip_accents": null}')
    ids = [each.tolist() for each in Tokenizer.load(folder).encode_ids(["café"])]
    assert ids == AutoTokenizer.from_pretrained(folder)(["café"], add_special_tokens=False)["input_ids"]
    assert ids != [each.tolist() for each in trained().encode_ids(["café"])]


def test_a_saved_tokenizer_reads_all_of_a_text_whatever_its_last_use_cut(folder: Path) -> None:
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    changed_json(folder, truncation=cut, padding={**padding, "pad_type_id": 0, "pad_token": "[PAD]"})
    assert Tokenizer.load(folder).encode_pair("fox").ids.tolist() == trained().encode_pair("fox").ids.tolist()
    for literal in (False, True):
        ids, again = (each.encode_ids(SENTENCES, literal) for each in (Tokenizer.load(folder), trained()))
        assert [each.tolist() for each in ids] == [each.tolist() for each in again]


def test_a_tokenizer_json_without_a_special_piece_is_refused(folder: Path) -> None:
    state = changed_json(folder, added_tokens=[], post_processor=None)
    del state["model"]["vocab"]["[MASK]"]
    changed_json(folder, model=state["model"])
    with pytest.raises(BertsmithError, match=r"the vocabulary has no \[MASK\]"):
        Tokenizer.load(folder)


def test_the_hash_is_of_all_that_decides_ids(folder: Path) -> None:
    state = changed_json(folder)
    model, normalizer = state["model"], state["normalizer"]
    swapped = {"fox": model["vocab"]["##x"], "##x": model["vocab"]["fox"]}
    changes = (
        {},
        {"model": {**model, "max_input_chars_per_word": 30}},
        {"model": {**model, "vocab": {**model["vocab"], **swapped}}},
        *({"normalizer": {**normalizer, name: False}} for name in ("clean_text", "strip_accents", "lowercase")),
    )
    found = [Tokenizer(Engine.from_str(json.dumps(state | each))).sha256 for each in changes]
    assert found[0] == trained().sha256
    assert len(set(found)) == len(found)
