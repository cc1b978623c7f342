"""Kernels beside float64, run as `python -m bertsmith.bench.gpu.correctness_run SPEC`.

What attention drops is drawn from a seed. It is seen by values that each show one key, and the same is dropped in
float64.

Legend: T token slots, S sequences, N heads, D head width, H = N * D, L length of a sequence.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.base.device import choose_device
from bertsmith.base.layout import Layout
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.bench.child import Answer, CannotHere, Ready, serve
from bertsmith.bench.machine import running_on
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.model.attention.attend import flash_attention, settle
from bertsmith.model.attention.blocks import block_attention
from bertsmith.model.attention.packed import Packed
from bertsmith.model.attention.padded import padded_attention
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.masks import threshold_of
from bertsmith.model.embedding_lookup import _looked_up
from bertsmith.model.initial import initialise
from bertsmith.model.linear import Linear
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.model.residual import LayerNorm, add_mapped
from bertsmith.model.triton import attention as triton_attention
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.lamb import Lamb
from bertsmith.training.objective import mean_loss
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import StepSums

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FLASH, PADDED, BLOCKS = "flash varlen", "padded rows", "padded blocks"
SHORT = "Triton varlen up to 128"
"""Over sequences that one block of queries holds, whose backward pass is one kernel."""
OURS = ("Triton varlen", SHORT)
UPDATES = {"AdamW's update": AdamW, "LAMB's update": Lamb}
ROWS, STEP, GRAPH = "rows of a table", "a compiled step", "a compiled step as CUDA graphs"
RESIDUAL = "dropout, sum and LayerNorm"
_CPU = torch.device("cpu")
_SEED, _RATE, _DECAY = 1, 1e-2, 0.01


@dataclass(frozen=True)
class Sizes:
    """lengths: of sequences. heads, width: of attention. table: rows and columns. hidden: slots and width of hidden
    states, enough for the kernels that training has, and for every slot to lose some of its numbers. sequences: of each
    micro-batch of a step."""

    lengths: tuple[int, ...] = (3, 70, 0, 512, 128, 1, 0, 97, 384)
    heads: int = 16
    width: int = 64
    table: tuple[int, int] = (30_522, 1024)
    hidden: tuple[int, int] = (8192, 1024)
    sequences: int = 12

    @classmethod
    def tiny(cls) -> Sizes:
        """For Triton's interpreter."""
        return cls((3, 21, 0, 12), 2, 16, (50, 8), (24, 256), 3)


def largest_error(found: Tensor, exact: Tensor) -> float:
    """The largest difference, in parts of the largest number."""
    found, exact = found.detach().double().cpu(), exact.detach().cpu()
    return float((found - exact).abs().max() / exact.abs().max())


class Worker(Ready):
    """Each public method answers a question."""

    def __init__(self, spec: Answer) -> None:
        """spec: a device; whether steps are compiled; whether sizes are tiny."""
        self._device = choose_device(spec["device"], "fp32").torch_device
        super().__init__(**running_on(self._device))
        self._compiled, self._sizes = spec["compiled"], Sizes.tiny() if spec["tiny"] else Sizes()

    def error(self, kernel: str, dtype: str, dropout: float) -> Answer:
        """The largest errors forward and, where there is one, backward; `kept`: the share of the probabilities."""
        torch.manual_seed(_SEED)
        if kernel in UPDATES:
            return {"forward_error": self._update(kernel), "backward_error": None}
        if kernel == ROWS:
            return self._rows(DTYPES[dtype])
        if kernel == RESIDUAL:
            return self._residual(DTYPES[dtype], dropout)
        if kernel in (STEP, GRAPH):
            return self._step(DTYPES[dtype], as_graphs=kernel == GRAPH)
        return self._attention(kernel, DTYPES[dtype], dropout)

    def _attention(self, kernel: str, dtype: torch.dtype, dropout: float) -> Answer:
        sizes = self._sizes
        longest = 128 if kernel == SHORT else max(sizes.lengths)
        packed = Packed(Layout.from_lengths([min(length, longest) for length in sizes.lengths]), self._device)
        heads, hidden = sizes.heads, sizes.heads * sizes.width
        if kernel == FLASH:
            if self._device.type == "cpu" or torch.cuda.get_device_capability(self._device) < (8, 0):
                raise CannotHere("flash attention needs a GPU of compute capability 8.0 or more")
            settle("flash varlen", self._device)
        qkv = _drawn(0, packed.tokens, 3, hidden).to(self._device, dtype).requires_grad_()
        by_out = _drawn(1, packed.tokens, hidden).to(self._device, dtype)

        def run(qkv: Tensor) -> Tensor:
            torch.manual_seed(_SEED)
            if kernel in OURS:
                return triton_attention.varlen_attention(qkv, heads, packed.offsets, packed.longest, dropout)
            if kernel == FLASH:
                return flash_attention(qkv, heads, packed)
            if kernel == BLOCKS:
                return block_attention(qkv, heads, packed.head_blocks(heads), dropout)
            return padded_attention(qkv, heads, packed, dropout)

        out = run(qkv)
        out.backward(by_out)  # type: ignore[no-untyped-call]
        masks = None
        if dropout:
            masks = kept_of(lambda qkv: run(qkv.to(dtype)), packed, heads, sizes.width)
        rate = threshold_of(dropout) / 65536 if kernel in (*OURS, BLOCKS) else dropout
        exact_of = qkv.detach().double().requires_grad_()
        exact = written_out(exact_of, packed, heads, masks, rate)
        exact.backward(by_out.double())  # type: ignore[no-untyped-call]
        errors = {"forward_error": largest_error(out, exact), "backward_error": _error(qkv, exact_of)}
        return errors if masks is None else errors | _kept(masks, rate)

    def _rows(self, dtype: torch.dtype) -> Answer:
        rows, columns = self._sizes.table
        table = _drawn(0, rows, columns).to(self._device, dtype).requires_grad_()
        ids = torch.randint(rows, (4 * rows,), generator=torch.Generator().manual_seed(0)) % max(rows // 2, 1)
        by_out = _drawn(1, len(ids), columns).to(self._device, dtype)
        exact_of = table.detach().double().requires_grad_()
        out, exact = _looked_up(table, ids.to(self._device)), exact_of[ids.to(self._device)]
        out.backward(by_out)
        exact.backward(by_out.double())  # type: ignore[no-untyped-call]
        return {"forward_error": largest_error(out, exact), "backward_error": _error(table, exact_of)}

    def _residual(self, dtype: torch.dtype, dropout: float) -> Answer:
        """Of the end of half a block, compiled where steps are. What is dropped is seen by a map that gives 1, added to
        nothing."""
        slots, hidden = self._sizes.hidden
        linear, norm = Linear(hidden, hidden).to(self._device), LayerNorm(hidden, eps=1e-12).to(self._device)
        run = torch.compile(add_mapped, fullgraph=True, dynamic=False) if self._compiled else add_mapped
        x, given = (_drawn(number, slots, hidden).to(self._device) for number in range(2))
        wide, narrow = x.float().requires_grad_(), given.to(dtype).requires_grad_()
        parameters = [linear.weight, linear.bias, norm.weight, norm.bias]
        values = [_drawn(2 + number, *each.shape).float() / 32 for number, each in enumerate(parameters)]

        def added(x: Tensor, given: Tensor, *of_maps: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                for each, value in zip(parameters, of_maps, strict=True):
                    each.copy_(value)
            torch.manual_seed(_SEED)
            return run(x, given, linear, norm, dropout)

        nothing, one = torch.zeros(hidden), torch.ones(hidden)
        giving_one = torch.zeros(hidden, hidden), one, one, nothing
        shown, _ = added(torch.zeros_like(wide, requires_grad=True), narrow, *giving_one)
        mask = shown > 0
        # Else PyTorch's dropout is taken. On a GPU ours is for many places, which `Sizes.hidden` has.
        ours = self._compiled == (self._device.type != "cpu")
        rate = threshold_of(dropout) / 65536 if ours else dropout
        outs = added(wide, narrow, *values)
        inputs = [each.detach().double().requires_grad_() for each in (wide, narrow, *parameters)]
        x, given, *of_maps = inputs
        sums = x + mask / (1 - rate) * torch.nn.functional.linear(given, *of_maps[:2])
        exact = torch.nn.functional.layer_norm(sums, (hidden,), of_maps[2], of_maps[3], norm.eps)
        by_outs = [_drawn(10 + number, slots, hidden).to(self._device, each.dtype) for number, each in enumerate(outs)]
        torch.autograd.backward(outs, by_outs)
        torch.autograd.backward(exact, by_outs[0].double() + by_outs[1].double())
        errors = [_error(*pair) for pair in zip((wide, narrow, *parameters), inputs, strict=True)]
        forward = max(largest_error(each, exact) for each in outs)
        return {"forward_error": forward, "backward_error": max(errors), **_kept([mask], rate)}

    def _update(self, kernel: str) -> float:
        """Of what three updates change, of weights about as large as BERT's."""
        shapes = [self._sizes.table, (16_385,), (1,), (7, 5)]
        starts = [_drawn(number, *shape) / 32 for number, shape in enumerate(shapes)]
        weights = [torch.nn.Parameter(each.to(self._device, torch.float32)) for each in starts]
        decays = [_DECAY, _DECAY, 0.0, 0.0]
        optimizer = UPDATES[kernel](
            [{"params": weights[:2], "weight_decay": _DECAY}, {"params": weights[2:], "weight_decay": 0.0}]
        )
        optimizer.set_learning_rate(_RATE)
        steps = [[_drawn(10 * step + number, *shape) for number, shape in enumerate(shapes)] for step in (1, 2, 3)]
        for gradients in steps:
            for each, gradient in zip(weights, gradients, strict=True):
                each.grad = gradient.to(self._device, torch.float32)
            optimizer.step()
        exact = updated(starts, decays, steps, scaled=kernel != "AdamW's update")
        moved, wanted = (
            torch.cat(
                [(each.detach().double().cpu() - start).flatten() for each, start in zip(ends, starts, strict=True)]
            )
            for ends in (weights, exact)
        )
        return largest_error(moved, wanted)

    def _step(self, dtype: torch.dtype, as_graphs: bool) -> Answer:
        """The loss and all gradients of a model of two layers over two micro-batches, in fixed shapes as training has
        them; `refused`: why a graph is not taken."""
        config = BertConfig(
            vocab_size=1000,
            hidden_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=1024,
            hidden_act="gelu_pytorch_tanh",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        model = PretrainingModel(config, dtype)
        initialise(model, config.initializer_range, seed=0)
        exact_model = copy.deepcopy(model).double()
        exact_model.encoder.compute = None
        model.to(self._device).train()
        count = self._sizes.sequences
        drawn = [pretrain_batch(lengths_of("ragged", count, 128, seed), config.vocab_size, seed) for seed in range(2)]
        counts = {
            "masked": sum(len(batch.masked_positions) for batch in drawn),
            "next_sentence": sum(batch.layout.sequences for batch in drawn),
        }
        batches = fix_shapes(drawn, 128, piece=0)
        step = self._compiled_step(model, as_graphs)
        loss = _losses(model, batches, counts, self._device, step)
        exact = _losses(exact_model, batches, counts, _CPU, None)
        errors = {"forward_error": largest_error(loss, exact), "backward_error": _error_of_all(model, exact_model)}
        return errors | ({"refused": step.refused} if step is not None and step.refused else {})

    def _compiled_step(self, model: PretrainingModel, as_graphs: bool) -> CompiledStep | None:
        """None where steps are not compiled. A CPU has no graphs: there the same work is done once more for each."""
        if as_graphs and self._device.type == "cpu":
            return CompiledStep(model, self._device, "eager", graphs="true", capture=lambda work: work)
        return CompiledStep(model, self._device, graphs="true" if as_graphs else "false") if self._compiled else None


def _losses(
    model: PretrainingModel,
    batches: Sequence[PretrainBatch],
    counts: Mapping[str, int],
    device: torch.device,
    step: CompiledStep | None,
) -> Tensor:
    """The loss of a step, whose gradients its parameters have afterwards; run by `step`, where there is one."""
    sums = StepSums(torch.zeros(3 * len(counts), dtype=torch.float64, device=device))
    for batch in batches:
        if step is not None:
            step.add_gradients(batch, counts, sums, lambda loss: loss)
            continue
        forward = Pretraining(model, device).forward(batch, device)
        sums.add(forward)
        loss = mean_loss([forward.losses[name] for name in counts], list(counts.values()))
        loss.backward()  # type: ignore[no-untyped-call]
    return (sums.figures[::3].cpu() / torch.tensor(list(counts.values()))).sum()


def _drawn(seed: int, *shape: int) -> Tensor:
    """Normal numbers in float64, that fp32 has too."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def _error(found: Tensor, exact: Tensor) -> float:
    """Of gradients."""
    return largest_error(_gradient(found), _gradient(exact))


def _error_of_all(model: PretrainingModel, exact: PretrainingModel) -> float:
    found, wanted = (torch.cat([_gradient(each).flatten() for each in of.parameters()]) for of in (model, exact))
    return largest_error(found, wanted)


def _gradient(of: Tensor) -> Tensor:
    assert of.grad is not None
    return of.grad


def updated(
    weights: Sequence[Tensor], decays: Sequence[float], steps: Sequence[Sequence[Tensor]], scaled: bool
) -> list[Tensor]:
    """The weights after AdamW's updates, written out; with `scaled` LAMB's. steps: the gradients of each."""
    weights, means, squares = list(weights), [0 * each for each in weights], [0 * each for each in weights]
    for step, gradients in enumerate(steps, start=1):
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        for number, gradient in enumerate(gradients):
            gradient, weight = gradient / norm.clamp(min=1), weights[number]
            means[number] = 0.9 * means[number] + 0.1 * gradient
            squares[number] = 0.999 * squares[number] + 0.001 * gradient**2
            corrected = means[number] / (1 - 0.9**step), squares[number] / (1 - 0.999**step)
            move = corrected[0] / (corrected[1].sqrt() + 1e-6) + decays[number] * weight
            ratio = weight.norm() / move.norm() if scaled and decays[number] else 1.0
            weights[number] = weight - _RATE * ratio * move
    return weights


def kept_of(run, packed: Packed, heads: int, width: int) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Which probabilities of each sequence `run` keeps, bool[N, L, L]. run: [T, 3, H] to [T, H], with a draw that is
    always the same."""
    lengths, starts = packed.layout.lengths.tolist(), packed.layout.offsets.tolist()
    masks = [torch.zeros(heads, length, length, dtype=torch.bool, device=packed.device) for length in lengths]
    for first in range(0, max(lengths), width):
        qkv = torch.zeros(packed.tokens, 3, heads, width, device=packed.device)
        for start, length in zip(starts, lengths, strict=False):
            keys = torch.arange(first, max(first, min(first + width, length)), device=packed.device)
            qkv[start + keys, 2, :, keys - first] = 1
        with torch.no_grad():
            shown = run(qkv.view(packed.tokens, 3, heads * width)).view(packed.tokens, heads, width)
        for start, length, mask in zip(starts, lengths, masks, strict=False):
            keys_shown = max(min(width, length - first), 0)
            mask[:, :, first : first + keys_shown] = (shown[start : start + length, :, :keys_shown] > 0).transpose(0, 1)
    return masks


def written_out(qkv: Tensor, packed: Packed, heads: int, masks: Sequence[Tensor] | None, dropout: float) -> Tensor:
    """Attention sequence by sequence, with these probabilities kept, or all."""
    lengths, starts = packed.layout.lengths.tolist(), packed.layout.offsets.tolist()
    width = qkv.shape[-1] // heads
    outs = []
    for number, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        q, k, v = qkv[start : start + length].view(length, 3, heads, width).permute(1, 2, 0, 3)
        probabilities = (q @ k.transpose(1, 2) / width**0.5).softmax(-1)
        if masks is not None:
            probabilities = probabilities * masks[number] / (1 - dropout)
        outs.append((probabilities @ v).transpose(0, 1).reshape(length, heads * width))
    return torch.cat(outs)


def _kept(masks: Sequence[Tensor], rate: float) -> Answer:
    """The share that is kept, and how many standard deviations it is away from what it should be."""
    count = sum(each.numel() for each in masks)
    kept = sum(int(each.sum()) for each in masks) / count
    return {"kept": kept, "kept_deviations": abs(kept - 1 + rate) / math.sqrt(rate * (1 - rate) / count)}


if __name__ == "__main__":
    serve(Worker)
