"""A run from a trained model: what its loss is and should be, and what it forgets of the text it came from."""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.tokens.extension import NewWord, extend
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining import compiled
from bertsmith.training.pretraining.continued import own_figures
from bertsmith.training.records.curves import draw_curves
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.work import old_text_of_run
from made_runs import corpus, figures, signalled_after, small_recipe, weights

# With as much held-out text as it takes to know what frequencies alone would give.
recipe_of = partial(small_recipe, evaluate_instances=16)
TRAINED = recipe_of(
    phase1__steps=100,
    phase1__learning_rate=0.01,
    phase1__warmup=0.1,
    phase2__steps=0,
    optimizer__name="adamw",
)
SHORT = recipe_of(phase1__steps=2, phase2__steps=1, evaluate_every=1)
NO_STEP = {"phase2__steps": 0, "phase1__steps": 1, "phase1__learning_rate": 1e-12}


def written(folder: Path, tokenizer: Tokenizer, first: int, held_out: float = 0.3) -> Corpus:
    """Documents of two words each, from the vocabulary's whole words from the first on: one who has seen one of them
    knows half of the others, and frequencies know next to nothing."""
    words = [each for each in corpus().tokenizer().pieces if each.isascii() and each.isalpha() and len(each) > 3]
    draw = random.Random(first)
    pairs = itertools.combinations(words[first : first + 16], 2)
    texts = [" ".join(f"{' '.join(draw.choices(pair, k=6))}." for _ in range(6)) for pair in pairs]
    folder.mkdir()
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    options = PrepareOptions(documents="line", held_out=held_out, workers=1, shard_tokens=8000)
    return prepare(folder / "texts.txt", folder / "corpus", tokenizer=tokenizer, options=options)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return written(tmp_path_factory.mktemp("old") / "texts", corpus().tokenizer(), first=0)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """In the same vocabulary; half of its words are among the old ones."""
    return written(tmp_path_factory.mktemp("new") / "texts", corpus().tokenizer(), first=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, old: Corpus) -> Run:
    """A model of the old text that knows more than frequencies."""
    return pretrain(TRAINED, old, tmp_path_factory.mktemp("run") / "run")


def line_with(said: pytest.LogCaptureFixture, words: str) -> str:
    (line,) = [line for line in said.messages if words in line]
    return line


def test_the_loss_before_training_stands_beside_what_it_should_be(
    run: Run, old: Corpus, new: Corpus, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """On text like that of its own training, and on text of which it knows half of the words."""
    (final,) = run.metrics("final")
    assert final["masked_loss"] < final["unigram_loss"] - 0.2, "the model of this test is trained"
    for text, begin, verdict, end in (
        (old, "", "well below", ")"),
        (new, "warning: ", "not well below", "this text is far from that of its own training"),
    ):
        said.clear()
        started = pretrain(recipe_of(**NO_STEP), text, tmp_path / verdict, init_from=run.folder)
        (start,) = started.metrics("start")
        line, bits = line_with(said, "loss before training"), start["masked_bits_per_byte"]
        assert line.startswith(f"{begin}loss before training: {start['masked_loss']:.3f} ({bits:.3f} bits per byte) on")
        assert f", {verdict} the {start['unigram_loss']:.3f} of frequencies alone, as it should be; next sent" in line
        assert line.endswith(end)
        own, theirs = line_with(said, "held-out text of its own training"), final["masked_bits_per_byte"]
        assert f"at 64 tokens, the model had {final['masked_loss']:.3f} ({theirs:.3f} bits per byte)" in own
        assert own.endswith(f"on this text that is {bits - theirs:+.3f} bits per byte")


def test_a_model_folder_says_what_it_was_trained_on_wherever_it_lies(
    run: Run, old: Corpus, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(run.model, tmp_path / "model")
    facts = json.loads((tmp_path / "model" / "pretraining.json").read_text(encoding="utf-8"))
    (final,) = run.metrics("final")
    assert (facts["steps"], facts["tokens"]) == (100, run.metrics("end")[0]["tokens"])
    assert own_figures(tmp_path / "model")[64]["masked_loss"] == final["masked_loss"]
    path = tmp_path / "model" / "pretraining.json"
    for damaged in ("[]", '{"held_out": {"64": {"masked_loss": "low"}}}', '{"held_out": {"64": {"masked_loss": []}}}'):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(BertsmithError, match="does not say what a model was trained on"):
            own_figures(tmp_path / "model")
    # A loss that was no number is null, and one figure alone compares with nothing.
    for number, told in enumerate(('{"masked_loss": null, "unigram_loss": 5.1}', '{"masked_loss": 5.1}', "")):
        path.write_text(f'{{"held_out": {{"64": {told}}}}}', encoding="utf-8")
        if not told:
            path.unlink()
        said.clear()
        pretrain(recipe_of(**NO_STEP), old, tmp_path / f"run-{number}", init_from=tmp_path / "model")
        assert line_with(said, "does not say which loss")


@pytest.mark.parametrize(("wild", "words"), [(False, ""), (True, "; guessing among all pieces would be as good")])
def test_a_model_that_knows_no_more_than_frequencies_is_warned_of(
    run: Run, old: Corpus, tmp_path: Path, said: pytest.LogCaptureFixture, wild: bool, words: str
) -> None:
    """A head that gives every piece its frequency; and a head of large random numbers."""
    shutil.copytree(run.model, tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    bias = torch.from_numpy(old.unigrams() + 1.0).log().float()
    tensors["cls.predictions.bias"] = torch.randn(len(bias)) * 9 if wild else bias
    tensors["cls.predictions.transform.LayerNorm.weight"].zero_()
    tensors["cls.predictions.transform.LayerNorm.bias"].zero_()
    (tmp_path / "model" / "pretraining.json").unlink()
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    started = pretrain(recipe_of(**NO_STEP), old, tmp_path / "run", init_from=tmp_path / "model")
    (start,) = started.metrics("start")
    if not wild:
        assert start["masked_loss"] == pytest.approx(start["unigram_loss"], abs=1e-4)
    line = line_with(said, "loss before training")
    assert line.startswith("warning: ")
    assert f"not well below the {start['unigram_loss']:.3f} of frequencies alone" in line
    assert f"{words}; has it a trained masked-word head?" in line


def test_old_text_is_measured_as_it_was_when_the_model_was_finished(
    run: Run, old: Corpus, new: Corpus, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    continued = pretrain(SHORT, new, tmp_path / "run", init_from=run.folder, outputs=Outputs(also_evaluate=old))
    (then,) = run.metrics("final")
    before = continued.metrics("before")
    assert [each["sequence_length"] for each in before] == [64, 96]
    shared = [name for name in then if f"old_{name}" in before[0]]
    assert len(shared) >= 10
    assert {name: before[0][f"old_{name}"] for name in shared} == {name: then[name] for name in shared}
    during, final = continued.metrics("evaluation"), continued.metrics("final")
    assert [each["step"] for each in during] == [1, 2, 3]
    assert all("old_masked_loss" in each for each in (*during, *final))
    right, loss = during[0]["old_masked_accuracy"], during[0]["old_masked_loss"]
    line = line_with(said, "held out, after step 1:")
    assert line.endswith(f"; old text: masked words {right:.1%} right, loss {loss:.3f}")
    table = line_with(said, "loss before  ").splitlines()
    assert [row.split()[:3] for row in table[1:]] == [
        [*f"{t} text".split(), n] for n in ("64", "96") for t in ("new", "old")
    ]
    for row, first, last in zip(table[2::2], before, final, strict=True):
        lost = last["old_masked_loss"] - first["old_masked_loss"]
        assert row.split()[3:6] == [f"{first['old_masked_loss']:.3f}", f"{last['old_masked_loss']:.3f}", f"{lost:+.3f}"]
    assert not [name for name in own_figures(continued.model)[64] if name.startswith("old_")], "it is not its own text"
    if draw_curves(continued.metrics(), tmp_path / "curves.png"):
        draw_curves([each for each in continued.metrics() if each["kind"] == "train"], tmp_path / "without.png")
        assert (tmp_path / "curves.png").read_bytes() != (tmp_path / "without.png").read_bytes()


def test_the_same_text_twice_has_the_same_figures_and_changes_nothing(run: Run, old: Corpus, tmp_path: Path) -> None:
    both = pretrain(SHORT, old, tmp_path / "both", init_from=run.folder, outputs=Outputs(also_evaluate=old.folder))
    alone = pretrain(SHORT, old, tmp_path / "alone", init_from=run.folder)
    for each in (*both.metrics("evaluation"), *both.metrics("before"), *both.metrics("final")):
        old = {name.removeprefix("old_"): value for name, value in each.items() if name.startswith("old_")}
        assert old == {name: each[name] for name in old}
    assert weights(both) == weights(alone)
    assert [
        {n: v for n, v in each.items() if not n.startswith("old_")}
        for each in figures(both)
        if each["kind"] != "before"
    ] == (figures(alone))


def test_old_text_of_a_vocabulary_that_was_extended(run: Run, old: Corpus, tmp_path: Path) -> None:
    extended, _ = extend(corpus().tokenizer(), [NewWord("sphinx", 9, ())], corpus().tokenizer().size + 64)
    larger = written(tmp_path / "texts", extended, first=8)
    continued = pretrain(SHORT, larger, tmp_path / "run", init_from=run.folder, outputs=Outputs(also_evaluate=old))
    before, then = continued.metrics("before")[0], run.metrics("final")[0]
    assert (before["old_masked_words"], before["old_sequences"]) == (then["masked_words"], then["sequences"])
    # The new rows take a little of every word's probability.
    assert then["masked_loss"] < before["old_masked_loss"] < then["masked_loss"] + math.log(1 + 64 / 512) * 2


def test_what_cannot_be_compared_is_refused_before_anything_is_trained(run: Run, old: Corpus, tmp_path: Path) -> None:
    reordered = Tokenizer.from_vocabulary(
        [*corpus().tokenizer().pieces[:5], *reversed(corpus().tokenizer().pieces[5:])], lowercase=True
    )
    strange = written(tmp_path / "strange", reordered, first=8)
    nothing_held_out = written(tmp_path / "none", corpus().tokenizer(), first=8, held_out=0.0)
    for each, words in ((strange, "different vocabularies"), (nothing_held_out, "no held-out documents")):
        with pytest.raises(BertsmithError, match=words):
            pretrain(SHORT, old, tmp_path / "run", init_from=run.folder, outputs=Outputs(also_evaluate=each))
    with pytest.raises(BertsmithError, match="no held-out documents"):
        pretrain(SHORT, nothing_held_out, tmp_path / "run", outputs=Outputs(also_evaluate=old))
    unlabelled = recipe_of(distillation__labels=0)
    with pytest.raises(BertsmithError, match="no head that predicts words"):
        pretrain(unlabelled, old, tmp_path / "run", teacher=run.folder, outputs=Outputs(also_evaluate=old))
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_compares_with_the_start(
    run: Run, old: Corpus, new: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    unbroken = pretrain(SHORT, new, tmp_path / "unbroken", init_from=run.folder, outputs=Outputs(also_evaluate=old))
    table = line_with(said, "loss before  ")
    for name, at_first in (("with", old), ("without", None)):
        with monkeypatch.context() as patch:
            signalled_after(2, patch)
            with pytest.raises(StoppedAfterSaving):
                pretrain(SHORT, new, tmp_path / name, init_from=run.folder, outputs=Outputs(also_evaluate=at_first))
        if at_first is not None:  # the table would have its figures beside those of the old text
            other = Outputs(also_evaluate=new)
            with pytest.raises(BertsmithError, match="was measured on another corpus"):
                pretrain(SHORT, new, tmp_path / name, init_from=run.folder, outputs=other, resume=True)
            anew = tmp_path / "anew"  # without a checkpoint, it has no figures of the old text any more
            shutil.copytree(tmp_path / name, anew, ignore=shutil.ignore_patterns("step-*"))
            begun = pretrain(SHORT, new, anew, init_from=run.folder, outputs=other, resume=True)
            assert weights(begun) == weights(unbroken)
        said.clear()
        resumed = pretrain(
            SHORT, new, tmp_path / name, init_from=run.folder, outputs=Outputs(also_evaluate=old), resume=True
        )
        assert weights(resumed) == weights(unbroken)
        if at_first is None:
            assert line_with(said, "was not measured before training")
        else:
            assert figures(resumed) == figures(unbroken)
            assert line_with(said, "loss before  ") == table


def test_a_run_that_leaves_its_old_text_out_for_a_while_keeps_to_it(old: Corpus, new: Corpus, tmp_path: Path) -> None:
    begun = old_text_of_run(old, {}, tmp_path)
    resumed = old_text_of_run(None, begun, tmp_path)
    assert old_text_of_run(old, resumed, tmp_path) == resumed == begun
    with pytest.raises(BertsmithError, match="was measured on another corpus"):
        old_text_of_run(new, resumed, tmp_path)


@pytest.mark.slow
def test_compiled_runs_measure_both_texts(
    run: Run, old: Corpus, new: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "COMPILER", "aot_eager")
    torch._dynamo.reset()
    made = {}
    for compile in ("true", "false"):
        recipe = recipe_of(compile=compile, micro_batch_tokens=384, phase1__steps=2, phase2__steps=0)
        made[compile] = pretrain(
            recipe, new, tmp_path / compile, init_from=run.folder, outputs=Outputs(also_evaluate=old)
        )
    one, two = (made[each].metrics("before")[0] for each in ("true", "false"))
    assert one["old_masked_loss"] == pytest.approx(two["old_masked_loss"], rel=1e-5)
    assert one["old_masked_words"] == two["old_masked_words"]
    assert not [line for line in said.messages if "compiled again" in line]
