"""What a run starts from: a model that fits the corpus, and a loss that is as it should be before the first update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, warn
from bertsmith.batches.packing import PretrainBatch
from bertsmith.corpus.repeats import repeated_share
from bertsmith.corpus.shards import Corpus
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tokens.extension import new_rows
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.loop import Trainer
from bertsmith.training.pretraining.continued import Figures, tell_trained
from bertsmith.training.pretraining.health import REPEATED, REPEATED_SHARE
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.weights.vocabulary import extend_vocabulary


def fit_vocabulary(model: PretrainingModel, corpus: Corpus, folder: Path) -> None:
    """Gives the model in `folder` rows for the pieces by which the corpus's vocabulary extends its own, if it does.
    Raises BertsmithError as `added_rows`."""
    if rows := added_rows(model.config, corpus, folder):
        extend_vocabulary(model, corpus.special.vocabulary_size, rows)
        means = f"{len(rows):,} new rows begin as the mean of their old pieces"
        say(f"the corpus's vocabulary extends the model's: {means}")


def added_rows(config: BertConfig, corpus: Corpus, folder: Path) -> dict[int, list[int]]:
    """What the vocabulary of the model in `folder` makes of each piece that the corpus's adds to it, by its id.

    A model may have more rows than its tokenizer has pieces, as NVIDIA's padded ones do: these stay, or become the new
    pieces'. Raises BertsmithError where it has fewer, and where the two vocabularies differ otherwise.
    """
    theirs, size, held = Tokenizer.load(folder), corpus.special.vocabulary_size, config.vocab_size
    if theirs.size > held:
        what = f"the tokenizer has {theirs.size:,} pieces and the model {held:,}"
        raise BertsmithError(what, folder, "use the tokenizer that the model was trained with")
    if theirs.sha256 == corpus.tokenizer_sha256 and held >= size:
        return {}
    rows = new_rows(theirs, corpus.tokenizer()) if held <= size else None
    if rows is None:
        raise BertsmithError(
            "the corpus was prepared with another tokenizer than this model's, so its ids mean other pieces",
            f"{corpus.folder} and {folder}",
            f"prepare the corpus again with --tokenizer {folder}, or with what `bertsmith vocab --extend` makes of it",
        )
    return rows


def guessing_loss(objective: Pretraining, spread: float | None = None) -> float:
    """Of guessing evenly among all pieces, and, of pairs, between two labels. spread: as of `check_start`."""
    return math.log(len(objective.unigrams)) + (math.log(2) if objective.model.pairs else 0.0) + (spread or 0.0)


def check_text(trainer: Trainer, corpus: Corpus) -> None:
    """Warns where much of the text repeats other text of the corpus."""
    share = repeated_share(corpus)
    if share > REPEATED_SHARE:
        advice = "prepare the corpus with --near-duplicates"
        if corpus.account.get("searches", {}).get("near_duplicates") is not None:
            advice = "near-duplicates were dropped already, so they repeat within documents, or in ones that differ"
        trainer.warn_of(
            REPEATED,
            f"{share:.0%} of the text to train on is in sentences that occur before (0.1% in Wikipedia): the model "
            f"will memorise them{', and held-out text has them too' if corpus.documents('held_out') else ''}; "
            f"{advice}",
        )


def check_trained_start(
    trainer: Trainer,
    objective: Pretraining,
    held_out: Sequence[PretrainBatch],
    own: Mapping[int, Figures],
    length: int,
) -> None:
    """Measures a trained model before its first update, and says what its loss should be; see `tell_trained`."""
    if not held_out:
        return
    found = objective.record(objective.measure(held_out, trainer.leave_if_stopped), held_out)
    loss = found["masked_loss"] + found.get("next_sentence_loss", 0.0)
    trainer.write("start", {"loss": loss, "guessing_loss": guessing_loss(objective), **found})
    tell_trained(found, own, length, len(objective.unigrams))


def check_start(trainer: Trainer, objective: Pretraining, held_out: Sequence[PretrainBatch], spread: float) -> None:
    """Compares the loss before the first update with that of guessing, and says what a difference means.

    spread: what the spread of fresh scores adds to the loss of guessing evenly.
    """
    if not held_out:
        return
    found = objective.measure(held_out, trainer.leave_if_stopped)
    pieces, loss = len(objective.unigrams), found.masked_loss + found.next_sentence_loss
    guessing = guessing_loss(objective, spread)
    trainer.write("start", {"loss": loss, "guessing_loss": guessing, **found.as_record()})
    terms = f"ln({pieces}){' + ln(2)' if objective.model.pairs else ''} + {spread:.2f}"
    said = f"loss before training: {loss:.3f}; guessing would give {terms} = {guessing:.3f}"
    if abs(loss - guessing) <= 0.5:
        say(f"{said} (the last term for the spread of fresh scores): as expected")
    elif not math.isfinite(loss):
        warn(f"{said}; it is not finite, so the weights are too large for this precision", of_all_ranks=True)
    else:
        more = "higher: the weights are too large" if loss > guessing else "lower: labels can be seen in the input"
        warn(f"{said}; it is {more}, or the vocabulary is not the corpus's", of_all_ranks=True)
