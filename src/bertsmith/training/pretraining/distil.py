"""The objective of a student on a corpus: its own labels, and the teacher's hidden states and relations of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.distillation.losses import hidden_sum, relation_sum
from bertsmith.model.distillation.maps import maps_of
from bertsmith.model.distillation.states import States, recorded
from bertsmith.model.encoder import Encoder
from bertsmith.model.losses import Forward, LossSum
from bertsmith.model.pretraining import PretrainInputs, PretrainLosses
from bertsmith.training.objective import figures_of, nothing
from bertsmith.training.pretraining.evaluate import FIGURES, held_out_figures, means, summed
from bertsmith.training.pretraining.inputs import flop_of, to_inputs
from bertsmith.training.pretraining.objective import Pretraining

HIDDEN, ATTENTION, VALUES = "hidden", "attention", "values"
# Without labels these have no gradient: both heads, and the pooler that feeds one of them.
_OF_LABELS = ("masked_head.", "next_sentence.", "encoder.pooler.")


@dataclass(frozen=True)
class Teaching:
    """What a student learns from. encoder: the teacher's, in evaluation mode. weights: of each loss, without those of
    weight 0. pairs: of `layer_pairs`. relation_heads: as of `relation_sum`."""

    encoder: Encoder
    weights: Mapping[str, float]
    pairs: tuple[tuple[int, int], ...]
    relation_heads: int

    @property
    def relations(self) -> list[str]:
        """Those that are compared."""
        return [name for name in (ATTENTION, VALUES) if name in self.weights]


@dataclass(frozen=True, kw_only=True)
class DistilledPretraining(Pretraining):
    """An `Objective`. Teacher and student are given the same masked text. A loss of the teacher's is a mean over tokens
    times its weight; one that has no weight is left out."""

    teaching: Teaching

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.teaching.weights)

    @property
    def predicts(self) -> bool:
        return PretrainLosses._fields[0] in self.teaching.weights

    def forward(self, batch: PretrainBatch, device: torch.device) -> Forward:
        inputs = to_inputs(batch, device)
        found = self._losses(inputs, batch)
        # Of the teacher no head runs, and its forward pass is a third of what a step of it would take.
        headless = replace(batch, masked_labels=batch.masked_labels[:0], next_sentence_labels=batch.masked_labels[:0])
        flop = flop_of(self.model.config, batch if self.predicts else headless)
        flop += flop_of(self.teaching.encoder.config, headless) / 3
        return Forward(found, batch.tokens, inputs.packed.tokens, inputs.packed.attended_slots, flop)

    def _losses(self, inputs: PretrainInputs, batch: PretrainBatch) -> dict[str, LossSum]:
        """The losses that have a weight, multiplied by it."""
        with self._recorded(self.model.encoder, 0) as ours:
            if self.predicts:
                losses: PretrainLosses = self.model(inputs)
                found = dict(losses._asdict())
            else:
                _encode(self.model.encoder, inputs)
                found = {}
        found |= self._compared(ours, inputs, batch)
        return {name: replace(each, loss=self.teaching.weights[name] * each.loss) for name, each in found.items()}

    def _recorded(self, encoder: Encoder, side: int) -> AbstractContextManager[States]:
        """What is compared of the student (side 0) or the teacher (1), when its encoder runs within the block."""
        last = [encoder.config.num_hidden_layers] if self.teaching.relations else []
        return recorded(encoder, sorted({pair[side] for pair in self._pairs}), last)

    @property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        return self.teaching.pairs if HIDDEN in self.teaching.weights else ()

    def _compared(self, ours: States, inputs: PretrainInputs, batch: PretrainBatch) -> dict[str, LossSum]:
        """How far the student, as it was recorded, is from the teacher, without weights."""
        teaching, pairs, theirs = self.teaching, self._pairs, self._taught(inputs)
        found: dict[str, LossSum] = {}
        if pairs:
            states = [ours.hidden[each] for each, _ in pairs], [theirs.hidden[each] for _, each in pairs]
            found[HIDDEN] = hidden_sum(*states, maps_of(self.model), batch.layout.tokens)
        for name in teaching.relations:
            (student,), (teacher,) = ours.qkv.values(), theirs.qkv.values()
            first, second = (0, 1) if name == ATTENTION else (2, 2)
            sides = (student[:, first], student[:, second]), (teacher[:, first], teacher[:, second])
            found[name] = relation_sum(*sides, teaching.relation_heads, batch.layout)
        return found

    @torch.no_grad()
    def _taught(self, inputs: PretrainInputs) -> States:
        with self._recorded(self.teaching.encoder, 1) as states:
            _encode(self.teaching.encoder, inputs)
        return states

    @torch.no_grad()
    def evaluate(self, held_out: Sequence[PretrainBatch], between: Callable[[], None] = nothing) -> dict[str, float]:
        """What heads predict, where they are trained, and the teacher's losses, each with its weight."""
        names, weights = self._of_teacher, self.teaching.weights
        if not names:
            return super().evaluate(held_out, between)
        letters = torch.from_numpy(self.alphabetic).to(self.device)
        nothing_predicted = torch.zeros(FIGURES, device=self.device)

        def figures(batch: PretrainBatch) -> Tensor:
            inputs, own = to_inputs(batch, self.device), nothing_predicted
            with self._recorded(self.model.encoder, 0) as ours:
                if self.predicts:
                    own = held_out_figures(self.model.scores(inputs), inputs, letters)
                else:
                    _encode(self.model.encoder, inputs)
            found = self._compared(ours, inputs, batch)
            return torch.cat([own, figures_of([found[name] for name in names])])

        sums = summed(self.model, held_out, figures, FIGURES + 3 * len(names), self.device, between)
        of_teacher = zip(names, sums[FIGURES::3], sums[FIGURES + 1 :: 3], strict=True)
        losses = {f"{name}_loss": weights[name] * loss / max(count, 1) for name, loss, count in of_teacher}
        if not self.predicts:
            return losses
        return {**self.record(means(sums[:FIGURES]), held_out), **losses}

    def training_line(self, record: Mapping[str, float]) -> str:
        return ", ".join((super().training_line(record), *self._words(record if len(self.names) > 1 else {})))

    def evaluation_line(self, when: str, figures: Mapping[str, float]) -> str:
        own = super().evaluation_line(when, figures) if self.predicts else f"held out, {when}"
        return f"{own}; from the teacher: {', '.join(self._words(figures)) or 'nothing'}"

    @property
    def _of_teacher(self) -> list[str]:
        """The losses that are not the student's own."""
        return [name for name in self.names if name not in PretrainLosses._fields]

    def _words(self, figures: Mapping[str, float]) -> list[str]:
        found = {name: figures.get(f"{name}_loss") for name in self._of_teacher}
        return [f"{name} {loss:.4f}" for name, loss in found.items() if loss is not None]


def _encode(encoder: Encoder, inputs: PretrainInputs) -> None:
    encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)


def freeze_unlabelled(model: nn.Module) -> None:
    """Leaves what labels alone would train as it is."""
    for name, parameter in model.named_parameters():
        if name.startswith(_OF_LABELS):
            parameter.requires_grad_(False)
