"""Both ways to share a step over NCCL: on as many ranks as there are GPUs, one at least, the step of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import bertsmith
from bertsmith.base.device import Device
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.tasks.finetuning import start
from bertsmith.tasks.finetuning.work import Work
from bertsmith.training.parallel import replicate, shard, whole
from bertsmith.training.parallel.replicate import Replicated
from bertsmith.training.parallel.shard import _Sums
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.run_folder import Run
from bertsmith.training.step import train_step
from made_gpu_runs import ran_without_waits, stored_corpus
from made_pretraining import fresh_model
from made_rows import QUICK, made_model, rows

VOCABULARY, STEPS, MODES = 1000, 3, ("replicate", "shard")
CASES = [
    (mode, compute, sums)
    for mode in MODES
    for compute in (None, torch.bfloat16)
    for sums in (torch.float32, torch.bfloat16)
]


def key(case: tuple) -> str:
    return " ".join(map(str, case))


def trained(device: torch.device, case: tuple, micro_batches: range, compiled: bool = False) -> dict[str, torch.Tensor]:
    """The weights after some updates; in the last one the host may not wait for the device."""
    mode, compute, sums = case
    shape = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 512}
    model: PretrainingModel = fresh_model(compute, **shape).to(device)
    if mode == "replicate":
        replicate(model, sums)
    elif mode == "shard":
        shard(model, model.encoder.layers, compute, sums)
    optimizer = Lamb(parameter_groups(model, 0.01), epsilon=1e-3)
    step_of = CompiledStep(model, device) if compiled else None
    batch = pretrain_batch(lengths_of("ragged", 16, 64), VOCABULARY)
    counts = {"masked": 8 * len(batch.masked_positions), "next_sentence": 8 * batch.layout.sequences}
    try:
        for number in range(STEPS):
            torch.cuda.set_sync_debug_mode("error" if number == STEPS - 1 else "default")
            optimizer.set_learning_rate(1e-2)
            train_step(Pretraining(model, device), optimizer, [batch for _ in micro_batches], counts, device, step_of)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {name: whole(each.detach()).cpu() for name, each in model.named_parameters()}


def sums_by_the_device(device: torch.device) -> dict[str, torch.Tensor]:
    """Sums of ones by both ways to share a step, started with one rank too, where training leaves them out."""
    ranks, found = dist.get_world_size(), {}
    for sums in (torch.float32, torch.bfloat16):
        weights = [torch.nn.Parameter(torch.zeros(size, device=device)) for size in (300, 200)]
        shared = Replicated(weights, sums, bucket_bytes=800)
        shared.ranks = max(ranks, 2)  # as if there were others, so that it starts its sums
        shared.begin()
        shared.before_last()
        sum(each.sum() for each in weights).backward()
        shared.finish()
        found |= {f"replicate {sums} {number}": each.grad.cpu() for number, each in enumerate(weights)}
        part = torch.empty(500, device=device)
        reduce_scatter = _Sums(sums)
        whole_ones = torch.ones(500 * ranks, device=device)
        work = reduce_scatter(part, whole_ones, dist.group.WORLD, dist.ReduceOp.SUM, async_op=True)
        if work is not None:
            work.wait()
        found[f"shard {sums}"] = part.cpu()
    return found


def work_of_a_rank(rank: int, ranks: int, folder: Path) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "cuda:nccl,cpu:gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, device_id=device
    )
    mine = range(rank, 8, ranks)
    found = {key(case): trained(device, case, mine) for case in CASES}
    found["compiled"] = trained(device, CASES[0], mine, compiled=True)
    found["sums"] = sums_by_the_device(device)
    if ranks > 1:  # a run of one rank shares nothing
        runs = {mode: ran_without_waits(folder / "corpus", folder / mode, parallel=mode) for mode in MODES}
        found["runs"] = {mode: run.is_finished() for mode, run in runs.items()}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, torch.Tensor]]]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device was found")
    ranks, folder = min(torch.cuda.device_count(), 8), tmp_path_factory.mktemp("ranks")
    stored_corpus(folder)
    mp.spawn(work_of_a_rank, (ranks, folder), nprocs=ranks)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def test_the_sums_themselves_run_over_nccl_on_any_number_of_gpus(
    cuda: torch.device, found: list[dict[str, dict[str, torch.Tensor]]]
) -> None:
    for each in found:
        assert len(each["sums"]) == 6
        for name, values in each["sums"].items():
            assert torch.equal(values, torch.full_like(values, len(found))), name


@pytest.mark.parametrize("case", [*map(key, CASES), "compiled"])
def test_weights_are_those_of_one_process(
    cuda: torch.device, found: list[dict[str, dict[str, torch.Tensor]]], case: str
) -> None:
    _, compute, sums = dict(zip(map(key, CASES), CASES, strict=True)).get(case, CASES[0])
    expected = trained(cuda, ("", compute, sums), range(8))
    close = 1e-3 if compute is None and sums == torch.float32 else 3e-2
    for each in found:
        for name, value in expected.items():
            assert float((each[case][name] - value).norm()) <= close * max(float(value.norm()), 1e-2), name
    for other in found[1:]:
        assert all(torch.equal(value, other[case][name]) for name, value in found[0][case].items())


@pytest.mark.parametrize("mode", MODES)
def test_whole_runs_wait_for_nothing_between_two_lines_of_the_log(
    cuda: torch.device, found: list[dict[str, dict[str, torch.Tensor]]], mode: str
) -> None:
    if len(found) == 1:
        pytest.skip("one GPU: a run of one rank shares nothing; its steps are in the tests above")
    assert all(each["runs"][mode] for each in found)


def tune(rank: int, ranks: int, folder: Path) -> None:
    """What every rank does: two seeds side by side, each on a card of its own where there are two."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    build, devices = start.build_model, []

    def building(work: Work, device: Device, seed: int) -> torch.nn.Module:
        devices.append(str(device.torch_device))
        return build(work, device, seed)

    start.build_model = building
    tuned(folder / "model", folder / "beside", side_by_side=True)
    assert set(devices) == {f"cuda:{rank}" if ranks > 1 else "cuda"}
    dist.destroy_process_group()


def tuned(model: Path, out: Path, side_by_side: bool = False) -> None:
    settings = replace(QUICK, epochs=2, seeds=2, device="cuda", side_by_side=side_by_side)
    bertsmith.finetune("classify", model, rows(60, 1), rows(30, 2), out, settings=settings)


def test_seeds_side_by_side_each_have_a_card_and_give_the_scores_of_one_after_another(
    cuda: torch.device, tmp_path: Path
) -> None:
    made_model(tmp_path)
    tuned(tmp_path / "model", tmp_path / "alone")
    ranks = min(torch.cuda.device_count(), 2)
    mp.spawn(tune, (ranks, tmp_path), nprocs=ranks)
    losses = [[each["loss"] for each in Run(tmp_path / name).metrics("train")] for name in ("alone", "beside")]
    assert len(losses[0]) > 2
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
