"""What follows from a recipe alone, without PyTorch: the model's shape, how text is cut into instances, and masks."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.epochs import Epochs, ShardSource
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.pairs import PairSettings
from bertsmith.model.config import BertConfig
from bertsmith.recipes.schema import Activation, ModelShape, Recipe


def config_of(shape: ModelShape, vocabulary_size: int, pad: int) -> BertConfig:
    """The shape of a recipe as a config. vocabulary_size: in pieces. pad: the id of [PAD]."""
    return BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        hidden_act=shape.activation,
        hidden_dropout_prob=shape.hidden_dropout,
        attention_probs_dropout_prob=shape.attention_dropout,
        max_position_embeddings=shape.max_positions,
        pad_token_id=pad,
    )


def refuse_auto_of_shards(recipe: Recipe, ranks: int) -> None:
    """Raises BertsmithError where several ranks with shards of the weights are to find how large a micro-batch is."""
    if recipe.micro_batch_tokens == "auto" and recipe.parallel == "shard" and ranks > 1:
        what = "how many tokens fit is tried before weights are shared out, with all of them on each device"
        where = "micro_batch_tokens: auto, parallel: shard"
        raise BertsmithError(what, where, "give a number, or --parallel replicate")


# By the names of a config, of which two are the same one.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
}


def shaped_as(recipe: Recipe, config: BertConfig) -> Recipe:
    """The recipe with a model's shape and dropout, which a run that starts from that model keeps."""
    shape = replace(
        recipe.model,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        intermediate=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        activation=_ACTIVATIONS[config.hidden_act],
        hidden_dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
    )
    return replace(recipe, model=shape)


def check_positions(longest: int, positions: int) -> None:
    """Raises BertsmithError where the longest sequence, in tokens, has more than a model that a run starts from has
    positions."""
    if longest > positions:
        what = f"sequences of {longest} tokens do not fit a model of {positions} positions"
        raise BertsmithError(what, "recipe: sequence_length", f"use at most {positions}, as the model has no more")


def pairs_of(recipe: Recipe) -> PairSettings:
    """How documents are cut into instances."""
    return PairSettings(**asdict(recipe.pairs), single=recipe.objective == "mlm")


def order_of(recipe: Recipe, number: int, corpus: ShardSource, cache_folder: Path | None = None) -> Order:
    """The instances of phase `number`, by their position in it. cache_folder: as of `Epochs`."""
    return Order(
        Epochs(
            corpus,
            split="train",
            seed=recipe.seed,
            phase=number,
            sequence_length=recipe.phase(number).sequence_length,
            pairs=pairs_of(recipe),
            cache_folder=cache_folder,
        )
    )


def masking_of(recipe: Recipe, number: int) -> MaskingSettings:
    """How phase `number` is masked."""
    done, steps = (0 if number == 1 else recipe.phase1.steps), recipe.phase1.steps + recipe.phase2.steps
    special = pairs_of(recipe).special_pieces
    return MaskingSettings(**asdict(recipe.masking), first_step=done, run_steps=steps, special_pieces=special)
