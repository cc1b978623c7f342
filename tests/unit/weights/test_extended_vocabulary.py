"""A model that gets the rows of a larger vocabulary: old rows to the bit, new ones the mean of their old pieces."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tokens.extension import NewWord, extend, new_rows
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.pretrain import pretrain
from bertsmith.weights.huggingface import load_pretraining_model, save_pretraining_model
from bertsmith.weights.vocabulary import extend_vocabulary
from made_runs import corpus, small_corpus, small_recipe


def fresh_model(pieces: int) -> PretrainingModel:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    model = PretrainingModel(BertConfig(vocab_size=pieces, **shape))
    initialise(model, 0.02, 1)
    with torch.no_grad():
        model.masked_head.bias.normal_()
    return model


def test_old_rows_keep_their_bits_and_new_ones_are_means() -> None:
    model = fresh_model(20)
    word, bias = model.encoder.embeddings.word.weight.detach().clone(), model.masked_head.bias.detach().clone()
    others = {name: each.clone() for name, each in model.state_dict().items() if each.shape[:1] != (20,)}
    extend_vocabulary(model, 24, {3: [5, 6], 20: [1], 21: [7, 7, 9], 22: [0, 19], 23: range(20)})
    for old, new in ((word, model.encoder.embeddings.word.weight), (bias, model.masked_head.bias)):
        kept = [number for number in range(20) if number != 3]
        assert torch.equal(new[kept], old[kept])
        for row, parts in ((3, [5, 6]), (20, [1]), (21, [7, 7, 9]), (22, [0, 19]), (23, list(range(20)))):
            torch.testing.assert_close(new[row], sum(old[part] for part in parts) / len(parts), rtol=1e-5, atol=1e-7)
    assert model.config.vocab_size == model.encoder.config.vocab_size == 24
    assert model.encoder.embeddings.word.num_embeddings == 24
    assert all(torch.equal(each, model.state_dict()[name]) for name, each in others.items())
    assert all(each.requires_grad for each in model.parameters())
    with pytest.raises(ValueError, match="2 of them"):
        extend_vocabulary(model, 27, {25: [1]})


def test_a_run_from_a_model_goes_on_with_an_extended_vocabulary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = corpus().tokenizer()
    model = fresh_model(old.size)
    save_pretraining_model(model, small_corpus() / "tokenizer", tmp_path / "model")
    taken = [NewWord("sphinx", 9, ()), NewWord("docstring", 5, ())]
    extended, _ = extend(old, taken, old.size + 64)
    options = PrepareOptions(documents="line", held_out=0.3, workers=1, shard_tokens=8000)
    larger = prepare(small_corpus().parent / "topics.txt", tmp_path / "corpus", tokenizer=extended, options=options)
    recipe = small_recipe(phase1__steps=1, phase2__steps=0, phase1__learning_rate=1e-12)
    with caplog.at_level("INFO", "bertsmith"):
        run = pretrain(recipe, larger, tmp_path / "run", init_from=tmp_path / "model")
    assert "64 new rows begin as the mean of their old pieces" in caplog.text
    rows = new_rows(old, extended)
    assert rows is not None
    weights = load_file(run.model / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    before = load_pretraining_model(tmp_path / "model").encoder.embeddings.word.weight
    assert weights.shape[0] == old.size + 64
    torch.testing.assert_close(weights[: old.size], before, rtol=0, atol=1e-8)
    sphinx = extended.pieces.index("sphinx")
    assert [old.pieces[part] for part in rows[sphinx]] == [
        old.pieces[number] for number in old.encode_ids(["sphinx"])[0]
    ]
    torch.testing.assert_close(weights[sphinx], before[rows[sphinx]].mean(0), rtol=0, atol=1e-7)


def test_a_run_from_a_model_with_padded_rows_keeps_them(tmp_path: Path) -> None:
    pieces = corpus().tokenizer().size
    model = fresh_model(pieces + 8)
    save_pretraining_model(model, small_corpus() / "tokenizer", tmp_path / "model")
    recipe = small_recipe(phase1__steps=1, phase2__steps=0, phase1__learning_rate=1e-12)
    run = pretrain(recipe, corpus(), tmp_path / "run", init_from=tmp_path / "model")
    after = load_pretraining_model(run.model)
    assert after.config.vocab_size == pieces + 8
    torch.testing.assert_close(
        after.encoder.embeddings.word.weight, model.encoder.embeddings.word.weight, rtol=0, atol=1e-8
    )


def test_padded_rows_become_those_of_new_pieces() -> None:
    model = fresh_model(24)
    word = model.encoder.embeddings.word.weight.detach().clone()
    extend_vocabulary(model, 30, {row: [1, 2] for row in range(20, 30)})
    new = model.encoder.embeddings.word.weight
    assert torch.equal(new[:20], word[:20])
    torch.testing.assert_close(new[20:], word[1:3].mean(0).expand(10, -1))


def test_a_vocabulary_that_is_no_extension_is_refused(tmp_path: Path) -> None:
    pieces = corpus().tokenizer().pieces
    other = Tokenizer.from_vocabulary([*pieces[:5], *reversed(pieces[5:])], lowercase=True)
    save_pretraining_model(fresh_model(other.size), small_corpus() / "tokenizer", tmp_path / "model")
    shutil.rmtree(tmp_path / "tokenizer", ignore_errors=True)
    other.save(tmp_path / "model")
    with pytest.raises(BertsmithError, match="another tokenizer") as caught:
        pretrain(small_recipe(), corpus(), tmp_path / "run", init_from=tmp_path / "model")
    assert "vocab --extend" in caught.value.fix
