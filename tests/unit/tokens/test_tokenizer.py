"""Ids are those of transformers, special tokens only where asked for, folders that open there and here."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.tokens.extension import extend
from bertsmith.tokens.tokenizer import Tokenizer, truncated_lengths
from bertsmith.tokens.tokenizer_files import engine_from_vocabulary
from bertsmith.tokens.vocabulary import ascii_letters, train_vocabulary
from bertsmith.tokens.word_cache import WordMemo

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "Straße, café, naïve, Москва, 東京 and 北京: words of the world (1,234.5).",
    "unbelievable believers believe unbelievably in beliefs",
]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@cache
def trained(lowercase: bool = True) -> Tokenizer:
    return train_vocabulary(SENTENCES * 3, 512, lowercase)


def test_threads_may_share_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordMemo, "_fresh", _slowly(WordMemo._fresh))
    tokenizer = Tokenizer.from_vocabulary(trained().pieces, lowercase=True)
    tokenizer.most_words = 40  # forgotten after every few texts
    texts = [[f"{sentence} {number} {place}" for sentence in SENTENCES] for number in range(50) for place in range(4)]
    expected = [tokenizer.encode_by_library(each) for each in texts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(tokenizer.encode_ids, texts * 5))
    assert [[ids.tolist() for ids in each] for each in found] == expected * 5


def _slowly(function: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*values: Any) -> Any:
        time.sleep(0.001)  # other threads have their turn
        return function(*values)

    return slow


def folder_of(tokenizer: Tokenizer, path: Path) -> Path:
    tokenizer.save(path)
    return path


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_equal_transformers_on_real_and_random_text(
    lowercase: bool, tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    from transformers import AutoTokenizer, BertTokenizerFast

    vocabulary = real_data(f"vocab/bert-base-{'uncased' if lowercase else 'cased'}/vocab.txt")
    ours = Tokenizer.load(vocabulary)
    assert ours.lowercase is lowercase
    lines = real_data("wiki/enwiki-2015/AB/wiki_03").read_text().split("\n")[:1000]
    draw = random.Random(1)
    lines += [
        "".join(chr(draw.choice((draw.randrange(0x20, 0x3000), draw.randrange(0xD000)))) for _ in range(40))
        for _ in range(1000)
    ]
    ids = [each.tolist() for each in ours.encode_ids(lines)]
    folder = folder_of(ours, tmp_path / "tokenizer")
    for kind in (AutoTokenizer, BertTokenizerFast):
        theirs = kind.from_pretrained(folder, model_max_length=10**9)
        assert ids == theirs(lines, add_special_tokens=False)["input_ids"]


def test_a_trained_tokenizer_opens_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder_of(trained(), tmp_path))
    pair = trained().encode_pair(*SENTENCES[:2])
    there = theirs(*SENTENCES[:2], return_offsets_mapping=True)
    assert pair.ids.tolist() == there["input_ids"]
    assert pair.type_ids.tolist() == there["token_type_ids"]
    assert [tuple(each) for each in pair.offsets.tolist()] == there["offset_mapping"]
    assert theirs.mask_token_id == trained().special.mask


@settings(max_examples=300, deadline=None)
@given(UNICODE)
def test_remembered_words_give_the_ids_of_the_library(text: str) -> None:
    for lowercase in (True, False):
        tokenizer = trained(lowercase)
        expected = tokenizer._plain.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_ids([text])[0].tolist() == expected


def test_the_memory_of_words_is_bounded() -> None:
    tokenizer = Tokenizer.from_vocabulary(trained().pieces, True)
    tokenizer.most_words = 10
    texts = [f"w{number} {'x' * 90} fox-{number}" for number in range(200)]
    for _ in range(3):
        for start in range(0, 200, 20):
            got = [each.tolist() for each in tokenizer.encode_ids(texts[start : start + 20])]
            assert got == [
                tokenizer._plain.encode(text, add_special_tokens=False).ids for text in texts[start : start + 20]
            ]
    memo = tokenizer._memos.words
    assert len(memo._memo) < 200
    assert not any(len(word) > 64 for word in memo._memo)


def test_special_tokens_in_text_are_plain_unless_asked_for() -> None:
    tokenizer, special = trained(), trained().special
    assert special.mask not in tokenizer.encode_ids(["a [MASK] fox [SEP]"])[0]
    assert special.mask not in tokenizer.encode_pair("a [MASK] fox [SEP]").ids
    asked = tokenizer.encode_ids(["a [MASK] fox"], literal_specials=True)[0].tolist()
    assert asked.count(special.mask) == 1


def with_token(**changes: Any) -> Tokenizer:
    from tokenizers import Tokenizer as Engine

    state = json.loads(trained()._with_specials.to_str())
    state["added_tokens"].append({**state["added_tokens"][0], "id": 512, "content": "lazy dog", **changes})
    return Tokenizer(Engine.from_str(json.dumps(state)))


@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_with_a_space_is_found(special: bool) -> None:
    tokenizer = with_token(special=special)
    assert tokenizer.encode_pair("the lazy dog").ids.tolist()[-2] == 512
    assert tokenizer.encode_ids(["the lazy dog"])[0].tolist()[-1] == 512
    assert tokenizer.special.vocabulary_size == 513
    assert tokenizer.sha256 not in (trained().sha256, with_token(special=special, single_word=True).sha256)
    with pytest.raises(BertsmithError, match="tokens beside its vocabulary"):
        extend(tokenizer, [], 1024)


def test_another_casing_keeps_added_tokens() -> None:
    tokenizer = with_token(content="[E1]").with_casing(lowercase=False)
    assert not tokenizer.lowercase
    assert tokenizer.encode_ids(["a [E1]"])[0].tolist()[-1] == 512
    cased = Tokenizer.from_vocabulary(trained().pieces, False)
    assert trained().with_casing(lowercase=False).sha256 == cased.sha256
    plain = Tokenizer(engine_from_vocabulary(trained().pieces, True, "here", strip_accents=True))
    assert plain.with_casing(lowercase=False).sha256 == cased.sha256, "accents go with capital letters"


def test_pairs_are_cut_from_the_longer_end() -> None:
    pair = trained().encode_pair("fox " * 10, "dog " * 4, max_length=11)
    assert len(pair.ids) == 11
    assert pair.truncated == 6
    assert (pair.segments == 0).sum() == 4
    assert (pair.segments == 1).sum() == 4
    single = trained().encode_pair("fox " * 10, max_length=5)
    assert (len(single.ids), single.truncated) == (5, 7)
    assert single.offsets[1:4].tolist() == [[0, 3], [4, 7], [8, 11]]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_truncation_is_taking_one_by_one_from_the_longer(a: int, b: int, room: int) -> None:
    one, two = a, b
    while one + two > room:
        if one > two:
            one -= 1
        else:
            two -= 1
    assert truncated_lengths(a, b, room) == (one, two)


def test_folders_and_vocabularies_load_alike(tmp_path: Path) -> None:
    folder = folder_of(trained(False), tmp_path / "t")
    for path in (folder, folder / "tokenizer.json", folder / "vocab.txt"):
        loaded = Tokenizer.load(path)
        assert loaded.sha256 == trained(False).sha256
        assert not loaded.lowercase
    (folder / "tokenizer.json").unlink()
    assert Tokenizer.load(folder).sha256 == trained(False).sha256
    assert trained(True).sha256 != trained(False).sha256


def test_casing_of_a_bare_vocabulary_is_guessed_from_its_pieces(tmp_path: Path) -> None:
    for lowercase in (True, False):
        folder = folder_of(trained(lowercase), tmp_path / str(lowercase))
        bare = tmp_path / f"{lowercase}.txt"
        shutil.copy(folder / "vocab.txt", bare)
        assert Tokenizer.load(bare).lowercase is lowercase
    # Google's Chinese one is lower-cased, and has special pieces and symbols with capital letters.
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>", "a", "the", "##ing", "一"]
    for more, lowercase in (["A", "##B"], True), (["##Ing"], False), (["The"], False):
        bare.write_text("\n".join([*pieces, *more]), encoding="utf-8")
        assert Tokenizer.load(bare).lowercase is lowercase
    for letters, lowercase in ("acgt", True), ("ACGT", False):  # of DNA, which has no words
        bare.write_text("\n".join([*pieces[:5], *letters]), encoding="utf-8")
        assert Tokenizer.load(bare).lowercase is lowercase


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "no JSON object"),
        ("{", "not JSON"),
        ('{"do_lower_case": "yes"}', 'do_lower_case is "yes"'),
        ('{"strip_accents": 0}', "strip_accents is 0"),
    ],
)
def test_a_config_that_cannot_be_understood_is_refused(tmp_path: Path, config: str, message: str) -> None:
    folder = folder_of(trained(), tmp_path / "t")
    (folder / "tokenizer_config.json").write_text(config)
    with pytest.raises(BertsmithError, match=message) as caught:
        Tokenizer.load(folder / "vocab.txt")
    assert caught.value.where.endswith("tokenizer_config.json")
    assert "remove it" in caught.value.fix
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "strip_accents": null}')
    assert not Tokenizer.load(folder / "vocab.txt").lowercase


@pytest.mark.parametrize("state", ["[]", '{"model": []}', '{"model": ["WordPiece"]}', '{"model": "WordPiece"}'])
def test_json_that_is_no_tokenizer_is_refused(tmp_path: Path, state: str) -> None:
    (tmp_path / "tokenizer.json").write_text(state)
    with pytest.raises(BertsmithError, match="its model is None"):
        Tokenizer.load(tmp_path)


def test_what_is_no_bert_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="no tokenizer"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "run" / "model").mkdir(parents=True)
    for named, fix in ((tmp_path, "give a folder with"), (tmp_path / "run", f"give {tmp_path / 'run' / 'model'}")):
        with pytest.raises(BertsmithError, match="neither") as caught:
            Tokenizer.load(named)
        assert caught.value.fix.startswith(fix)
    bare = tmp_path / "vocab.txt"
    bare.write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(BertsmithError, match=r"\[CLS\], \[SEP\], \[MASK\]"):
        Tokenizer.load(bare)
    bare.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n")
    with pytest.raises(BertsmithError, match="twice"):
        Tokenizer.load(bare)
    folder = folder_of(trained(), tmp_path / "t")
    state = json.loads((folder / "tokenizer.json").read_text())
    state["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(BertsmithError, match="pre_tokenizer is WhitespaceSplit"):
        Tokenizer.load(folder)


def test_a_mark_and_an_empty_line_of_a_vocabulary_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    folder = folder_of(trained(), tmp_path / "t")
    bare = tmp_path / "vocab.txt"
    bare.write_bytes(b"\xef\xbb\xbf" + (folder / "vocab.txt").read_bytes())
    assert Tokenizer.load(bare).sha256 == trained().sha256
    assert "its byte order mark is left out" in caplog.text
    rows = (folder / "vocab.txt").read_text()
    bare.write_text(rows + "\n")
    assert Tokenizer.load(bare).size == trained().size + 1
    assert f"line {trained().size + 1:,} is empty" in caplog.text
    bare.write_text(rows + "\n\n")
    with pytest.raises(BertsmithError, match="twice, such as the empty one"):
        Tokenizer.load(bare)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"unk_token": "a"}, 'its unk_token is "a", BERT\'s is \\[UNK\\]'),
        ({"continuing_subword_prefix": "@@"}, 'its continuing_subword_prefix is "@@", BERT\'s is ##'),
        ({"vocab": {"other": 7}}, "'.' and 'other' have one id, 7"),
        ({"vocab": {"one": [7], "other": [7]}}, "the tokenizer cannot be read"),
        ({"vocab": {"other": True}}, "the tokenizer cannot be read"),
        ({"vocab": {"other": 10**9}}, "'other' has the id 1000000000, and no vocabulary here has more"),
    ],
)
def test_a_model_of_other_rules_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    folder = folder_of(trained(), tmp_path / "t")
    state = json.loads((folder / "tokenizer.json").read_text())
    pieces = {**state["model"]["vocab"], **changed.get("vocab", {})}
    state["model"] |= {**changed, "vocab": pieces}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(BertsmithError, match=message):
        Tokenizer.load(folder)


def test_pieces_of_different_ids_are_not_compared_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker loads the tokenizer, and a quarter of a second went by on 120,000 pieces."""
    folder, written = folder_of(trained(), tmp_path / "t"), []
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda value, **options: written.append(value) or dumps(value, **options))
    assert Tokenizer.load(folder).sha256 == trained().sha256
    assert not [value for value in written if isinstance(value, int)]


def test_masks_over_pieces() -> None:
    tokenizer = trained()
    pieces = tokenizer.pieces
    assert tokenizer.is_alphabetic[pieces.index("fox")]
    assert tokenizer.is_alphabetic[pieces.index("##a")]
    for piece in ("[MASK]", ",", "1"):
        assert not tokenizer.is_alphabetic[pieces.index(piece)]
    assert tokenizer.is_continuation[pieces.index("##a")]
    assert not tokenizer.is_continuation[pieces.index("#")]
    assert [tokenizer.piece_bytes[pieces.index(piece)] for piece in ("fox", "##a", "#")] == [3, 1, 1]


def test_decode_reads_back(tmp_path: Path) -> None:
    tokenizer = trained()
    assert tokenizer.decode(tokenizer.encode_ids(["The Fox jumps!"])[0]) == "the fox jumps !"
    assert tokenizer.decode([tokenizer.special.mask]) == "[MASK]"
    assert tokenizer.decode(np.zeros(0, np.uint16)) == ""


def test_a_vocabulary_is_pinned_padded_and_the_same_every_time() -> None:
    first, again = trained(), train_vocabulary(SENTENCES * 3, 500)
    assert first.pieces == again.pieces
    assert first.pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert first.special.pad == 0
    assert first.size == 512
    assert first.pieces[-1].startswith("[unused")
    assert set(first.pieces) >= ascii_letters(lowercase=True)
    assert "unbelievabl" in "".join(first.pieces)
    unknown = first.encode_ids(SENTENCES)
    assert not any(first.special.unknown in ids for ids in unknown)


def test_letters_take_the_rows_that_words_leave_free() -> None:
    signs = "".join(chr(0x4E00 + number) for number in range(300))
    kana = "".join(chr(0x3042 + number) for number in range(4))
    words = [*signs * 20, *[kana] * 2, *kana * 2]
    few, many = (train_vocabulary([" ".join(words)], size) for size in (320, 512))
    assert "[UNK]" not in many.decode(many.encode_ids([signs + kana])[0])
    assert {kana[0], f"##{kana[1]}"} < set(many.pieces), "a letter within words needs a row with ## too"
    assert many.pieces[-1].startswith("[unused"), "rows that are still free"
    assert many.pieces.index(signs[127]) < many.pieces.index(signs[128])
    assert not any(piece.startswith("[unused") for piece in few.pieces)
    assert few.special.unknown in few.encode_ids([signs])[0], "no row was left"


def test_the_same_vocabulary_in_fresh_processes(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from bertsmith.tokens.vocabulary import train_vocabulary as t;"
        "print(t([open(sys.argv[1]).read()], 1024).sha256)"
    )
    text = tmp_path / "text"
    draw = random.Random(3)
    text.write_text(" ".join("".join(draw.choices("abcdefgh", k=draw.randint(1, 7))) for _ in range(20_000)))
    found = {
        subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    }
    assert len(found) == 1


def test_a_vocabulary_needs_words_and_room() -> None:
    with pytest.raises(BertsmithError, match="no word to train"):
        train_vocabulary([" "], 512)
    with pytest.raises(BertsmithError, match="too small"):
        train_vocabulary(SENTENCES, 100)


@pytest.mark.parametrize(
    ("cased_json", "config"),
    [
        (True, {"do_lower_case": True}),
        (False, {"do_lower_case": False}),
        (True, {"strip_accents": True, "do_lower_case": False}),
        (False, {"strip_accents": False, "do_lower_case": True}),
        (False, {"tokenize_chinese_chars": False, "do_lower_case": True}),
    ],
)
def test_a_config_that_disagrees_with_tokenizer_json_is_followed_as_transformers_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cased_json: bool, config: dict[str, Any]
) -> None:
    from transformers import AutoTokenizer

    folder = folder_of(trained(lowercase=not cased_json), tmp_path)
    written = json.loads((folder / "tokenizer_config.json").read_text())
    assert "model_max_length" not in written, "no model was named"
    (folder / "tokenizer_config.json").write_text(json.dumps(written | config))
    with caplog.at_level("INFO", "bertsmith"):
        ours = Tokenizer.load(folder)
    ids = [each.tolist() for each in ours.encode_ids(SENTENCES)]
    assert ids == AutoTokenizer.from_pretrained(folder)(SENTENCES, add_special_tokens=False)["input_ids"]
    assert ids != [each.tolist() for each in trained(lowercase=not cased_json).encode_ids(SENTENCES)]
    assert "transformers follows it" in caplog.text
    ours.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").sha256 == ours.sha256
