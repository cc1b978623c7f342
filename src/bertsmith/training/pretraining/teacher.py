"""The teacher of a run on a corpus: whether it fits corpus and student, and what the student is given for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, warn
from bertsmith.corpus.shards import Corpus
from bertsmith.model.distillation.layers import evenly_spaced, keep_layers, layer_pairs
from bertsmith.model.distillation.maps import add_maps
from bertsmith.model.encoder import Encoder
from bertsmith.model.pretraining import PretrainingModel, PretrainLosses
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.pretraining.distil import ATTENTION, HIDDEN, VALUES, Teaching, freeze_unlabelled
from bertsmith.weights.huggingface import load_encoder, read_config


@dataclass(frozen=True)
class TeachingSettings:
    """The fields of a recipe's `distillation`: weights of the losses, and what is compared."""

    labels: float
    hidden: float
    attention: float
    values: float
    layer_map: str
    relation_heads: int
    teacher_layers: int

    @property
    def weights(self) -> dict[str, float]:
        """Of each loss that has one, in the order in which they are added up."""
        every = {
            **dict.fromkeys(PretrainLosses._fields, self.labels),
            **{HIDDEN: self.hidden, ATTENTION: self.attention, VALUES: self.values},
        }
        return {name: weight for name, weight in every.items() if weight}


def check_teacher(folder: Path, corpus: Corpus, longest: int) -> None:
    """Raises BertsmithError for a teacher that does not read the corpus. longest: tokens of a sequence."""
    config = read_config(folder)
    if Tokenizer.load(folder).sha256 != corpus.tokenizer_sha256:
        what = "the corpus was prepared with another tokenizer than the teacher's, so its ids mean different pieces"
        raise BertsmithError(what, f"{corpus.folder} and {folder}", f"prepare it again with --tokenizer {folder}")
    if config.max_position_embeddings < longest:
        what = f"sequences of {longest} tokens do not fit a teacher of {config.max_position_embeddings} positions"
        raise BertsmithError(what, folder, "lower the sequence_length of the phases")


def take_layers(model: PretrainingModel, count: int, folder: Path) -> None:
    """Leaves a model, loaded from the teacher's folder, with so many evenly spaced layers."""
    every = model.config.num_hidden_layers
    layers = evenly_spaced(count, every)
    keep_layers(model, layers)
    say(f"the student starts as layers {', '.join(map(str, layers))} of the {every} of {folder}")


def teaching_of(
    folder: Path, student: PretrainingModel, settings: TeachingSettings, device: Device, seed: int
) -> Teaching:
    """The teacher with its weights; gives the student the maps to the teacher's width, where it needs them."""
    encoder = load_encoder(folder, device.compute).to(device.torch_device).requires_grad_(False)
    ours, theirs = student.config, encoder.config
    pairs = layer_pairs(settings.layer_map, ours.num_hidden_layers, theirs.num_hidden_layers)
    heads = settings.relation_heads or theirs.num_attention_heads
    if (settings.attention or settings.values) and (ours.hidden_size % heads or theirs.hidden_size % heads):
        what = f"relations by {heads} heads: the widths are {ours.hidden_size} (student) and {theirs.hidden_size}"
        raise BertsmithError(what, "distillation.relation_heads", "use a number that divides both widths")
    if settings.hidden:
        add_maps(student, len(pairs), (ours.hidden_size, theirs.hidden_size), seed)
    if not settings.labels:
        freeze_unlabelled(student)
        warn("labels have no weight, so heads are not trained: the finished model is an encoder", of_all_ranks=True)
    _tell(folder, settings, pairs, heads, encoder)
    return Teaching(encoder, settings.weights, pairs, heads)


def _tell(
    folder: Path, settings: TeachingSettings, pairs: tuple[tuple[int, int], ...], heads: int, encoder: Encoder
) -> None:
    losses = ", ".join(f"{name} x {weight:g}" for name, weight in settings.weights.items())
    layers = ", ".join(f"{ours}:{theirs}" for ours, theirs in pairs)
    shape = f"{encoder.config.num_hidden_layers} layers of {encoder.config.hidden_size}"
    hidden = f"; layers (student:teacher) {layers}" if settings.hidden else ""
    relations = f"; relations of the last layers by {heads} heads" if settings.attention or settings.values else ""
    say(f"teacher: {folder}, {shape}; losses: {losses}{hidden}{relations}")
