"""Sharded weights: gathered by layer, summed once a step, and no copy of them outlives a product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from bertsmith.model.copies import _copies
from bertsmith.model.cpu import library
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.training.parallel import fill_from_whole, gradients_of, is_sharded, reshard, whole
from bertsmith.training.pretraining.inputs import to_inputs
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_pretraining import batch_of
from made_runs import ran_by_ranks
from made_steps import CPU, LENGTHS, MODES, SHAPE, check_close, dealt, model_for, part_of, take_step, weights_of

COMPUTE = (torch.float32, torch.bfloat16, torch.float16)
HIDDEN = SHAPE["hidden_size"]
# Of weights, as they are and joined: no other tensor of a step has one of them.
SHAPES = {
    (HIDDEN, HIDDEN),
    (3 * HIDDEN, HIDDEN),
    (SHAPE["intermediate_size"], HIDDEN),
    (HIDDEN, SHAPE["intermediate_size"]),
    (SHAPE["vocab_size"], HIDDEN),
}


def saved_copies(compute: torch.dtype | None, rank: int) -> tuple[int, int, int]:
    """Tensors that a forward pass saves in the shape of weights: (gathered ones, copies); and copies that are kept."""
    model = model_for("shard", compute=compute)
    before = len(_copies._kept)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: (saved.append(each), each)[1], lambda each: each):
        losses = model(to_inputs(part_of(batch_of(LENGTHS, seed=5), dealt(2, 1)[rank][0] or [0]), CPU))
    # A layer's memory is given back after its forward pass; a copy would have memory of its own.
    gone = [each for each in saved if each.shape in SHAPES and each.untyped_storage().size() == 0]
    held = [each for each in saved if each.shape in SHAPES and each.untyped_storage().size() > 0]
    roots = {each.untyped_storage().data_ptr() for each in model.parameters() if not isinstance(each, DTensor)}
    copies = [each for each in held if each.untyped_storage().data_ptr() not in roots]
    gradients_of(model).begin()
    gradients_of(model).before_last()
    (losses.masked.loss + losses.next_sentence.loss).backward()
    gradients_of(model).finish()
    vectors = sum(each.ndim < 2 for each in model.parameters())
    return len(gone), len(copies), max(len(_copies._kept) - before - vectors, 0)


def trained(mode: str, compute: torch.dtype | None, dropout: float, rank: int) -> dict[str, torch.Tensor]:
    """Losses and weights of three updates; what was computed with stale copies would differ from the second on."""
    model = model_for(mode, compute=compute, dropout=dropout)
    loss_scale = LossScale(initial=2.0**10) if compute == torch.float16 else None
    optimizer = Lamb(parameter_groups(model, 0.01), epsilon=1e-3, loss_scale=loss_scale)
    found = {}
    for number in range(3):
        torch.manual_seed(10 * number + rank)
        optimizer.set_learning_rate(0.05)
        found[f"figures {number}"] = take_step(model, optimizer, dealt(2, 2)[rank]).figures.clone()
    with torch.no_grad():
        found["scores"] = model.scores(to_inputs(batch_of(LENGTHS, seed=6), CPU))[0].float()
    reshard(model)
    return found | weights_of(model)


def at_fault(model: torch.nn.Module, of_matrices_alone: bool) -> RemovableHandle:
    """Makes gradients infinite, until it is removed."""
    if of_matrices_alone:  # what the norm of the embeddings gives back is for matrices; its own gradient is finite
        return model.encoder.embeddings.norm.register_forward_pre_hook(
            lambda _, given: (given[0].register_hook(lambda gradient: gradient * float("inf")), None)[1]
        )
    return model.encoder.layers[1].register_forward_hook(lambda _, given, out: (out[0] * float("inf"), out[1]))


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    found: dict[str, object] = {}
    for kernels in (False, True):
        (library.load if kernels else library.unload)()
        for compute in COMPUTE:
            key = f"{compute} {kernels}"
            found[f"saved {key}"] = saved_copies(compute, rank)
            for mode in MODES:
                found[f"{mode} {key}"] = trained(mode, compute, 0.1, rank)
    library.unload()
    model = model_for("shard")
    optimizer = Lamb(parameter_groups(model, 0.01))
    optimizer.make_moments()
    shared = [each for each in model.parameters() if isinstance(each, DTensor)]
    found["matrices"] = (len(shared), sum(each.ndim > 1 for each in model.parameters()))
    found["sharded"] = is_sharded(model)
    found["rows"] = [each.to_local().shape[0] for each in shared if each.shape[0] == 2]
    moment = optimizer.state[shared[0]]["mean"]
    fill_from_whole(moment, torch.arange(moment.numel(), dtype=torch.float32).view(moment.shape))
    found["moment"] = (whole(moment).flatten()[[0, -1]], moment.to_local().numel(), moment.numel())
    found["faulty"] = []
    for number, fault in enumerate((None, 0, 1, 0)):
        batch = dealt(2, 2)[rank]
        if fault == rank:
            handle = at_fault(model, of_matrices_alone=number == 3)
        before = weights_of(model)
        optimizer.set_learning_rate(0.1)
        sums = take_step(model, optimizer, batch)
        same = all(torch.equal(before[name], each) for name, each in weights_of(model).items())
        found["faulty"].append((sums.faulty.tolist(), bool(optimizer.finite), same))
        if fault == rank:
            handle.remove()
    before = weights_of(model)
    gathered = []

    def should_stop() -> bool:
        gathered.append(sum(not isinstance(each, DTensor) and each.ndim > 1 for each in model.parameters()))
        return len(gathered) == 7  # between forward and backward of the last micro-batch

    micro_batches, counts = [batch_of(LENGTHS, seed=5)] * 4, {"masked": 60, "next_sentence": 64}
    dropped = train_step(Pretraining(model, CPU), optimizer, micro_batches, counts, CPU, should_stop=should_stop)
    shared_again = sum(isinstance(each, DTensor) for each in model.parameters())  # `state_dict` would see to it
    after = {name: whole(each) for name, each in model.state_dict().items()}
    same = all(torch.equal(before[name], each) for name, each in after.items())
    found["dropped"] = (dropped is None and min(gathered), shared_again, same)
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ranks"))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_matrices_are_shared_and_vectors_are_whole(found: list[dict[str, object]]) -> None:
    for each in found:
        assert each["sharded"]
        assert each["matrices"][0] == each["matrices"][1]
        assert each["rows"] == [1, 1], "the token types, and the map of next sentences"


def test_a_moment_is_kept_in_shards_and_read_and_filled_whole(found: list[dict[str, object]]) -> None:
    for each in found:
        ends, here, everywhere = each["moment"]
        assert ends.tolist() == [0, everywhere - 1]
        assert here < everywhere


@pytest.mark.parametrize("compute", COMPUTE, ids=str)
@pytest.mark.parametrize("kernels", [False, True])
def test_no_copy_of_a_weight_is_saved_or_kept(
    found: list[dict[str, object]], compute: torch.dtype | None, kernels: bool
) -> None:
    for each in found:
        gone, copies, kept = each[f"saved {compute} {kernels}"]
        assert gone >= 2 * 6, "six matrices of each of two layers are saved, and their memory is given back"
        assert (copies, kept) == (0, 0)


@pytest.mark.parametrize("compute", COMPUTE, ids=str)
@pytest.mark.parametrize("kernels", [False, True])
def test_three_updates_with_dropout_are_those_of_replicated_weights(
    found: list[dict[str, object]], compute: torch.dtype | None, kernels: bool
) -> None:
    """Same dropout, same losses, and no gather is answered with the copy of an earlier one."""
    for each in found:
        sharded, replicated = (each[f"{mode} {compute} {kernels}"] for mode in reversed(MODES))
        assert torch.equal(sharded["figures 0"], replicated["figures 0"])
        assert not torch.equal(sharded["figures 0"], sharded["figures 1"])
        check_close(sharded, replicated, 1e-5 if compute == torch.float32 else 5e-3)


def test_a_step_that_is_dropped_leaves_the_weights_in_shards_and_as_they_were(found: list[dict[str, object]]) -> None:
    """What is outside of layers stays gathered between micro-batches."""
    for each in found:
        gathered, shared, same = each["dropped"]
        assert gathered > 0
        assert shared == each["matrices"][1]
        assert same


def test_the_rank_with_a_gradient_that_is_not_finite_is_named_and_none_updates(found: list[dict[str, object]]) -> None:
    for each in found:
        fault_of_the_first = ([1, 0], False, True)
        assert each["faulty"] == [([0, 0], True, False), fault_of_the_first, ([0, 1], False, True), fault_of_the_first]
