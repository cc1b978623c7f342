"""A checkpoint holds whole tensors, however many ranks held parts of them: any number of ranks resumes from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.checkpoints import Best, Position, load_best
from bertsmith.training.checkpoints import saver as saver_module
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.checkpoints.state import state_of
from bertsmith.training.parallel import fill_from_whole, whole
from made_checkpoints import loaded, made, written
from made_runs import ran_by_ranks

POSITION = Position(7, 2, 3, 1234, since_log=[0.5, 2.0], best=Best(0.25, 7))


def sharded(seed: int) -> tuple[PretrainingModel, Lamb]:
    """A model whose parameters are sharded over all ranks, and its optimizer with moments of zero."""
    model, _ = made(seed=seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = Lamb(parameter_groups(model, 0.01))
    optimizer.make_moments()
    return model, optimizer


def values(name: str, shape: torch.Size) -> Tensor:
    """What a test gives a tensor, by its name."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(shape, generator=generator)


def raised_by_a_save_after_a_bug(run: Path, model: PretrainingModel, optimizer: Lamb) -> str:
    """The first rank's thread fails with a bug of ours; what the next save raises on this rank."""

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver_module, "write_step", fails)
        saver = Saver(run, keep=1)
        saver.save(Position(1, 1, 1), model, optimizer)
        try:
            saver.save(Position(2, 1, 2), model, optimizer)
        except Exception as error:  # whatever it is, it is told
            return repr(error)
    return ""


def work_of_a_rank(rank: int, folder: Path, _: Path) -> None:
    """Saves a sharded model, and loads what one process saved."""
    model, optimizer = sharded(seed=1)
    tensors = state_of(model, optimizer)
    assert sum(isinstance(each, DTensor) for each in tensors.values()) > 20
    for name, tensor in tensors.items():
        fill_from_whole(tensor, values(name, tensor.shape))
    (folder / f"raised-{rank}").write_text(raised_by_a_save_after_a_bug(folder / "bug", model, optimizer))
    with Saver(folder / "sharded", keep=1) as saver:
        saver.save(POSITION, model, optimizer)
        assert bool(saver._snapshot.tensors) == (rank == 0), "the other ranks keep no copies"
        for tensor in tensors.values():
            fill_from_whole(tensor, torch.zeros(tensor.shape))
        saver.wait()
    dist.barrier()
    for source in ("sharded", "single"):
        model, optimizer = sharded(seed=2)
        assert loaded(folder / source, model, optimizer) == POSITION
        for name, tensor in state_of(model, optimizer).items():
            assert torch.equal(whole(tensor), values(name, tensor.shape)), (source, name)
        other, _ = sharded(seed=3)
        load_best(folder / source, Best(0.25, 7), other)
        for name, tensor in other.state_dict().items():
            assert torch.equal(whole(tensor), values(f"model.{name}", tensor.shape)), (source, name)
    dist.barrier()
    (folder / f"done-{rank}").touch()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ranks")
    model, optimizer = made(seed=1)
    for name, tensor in state_of(model, optimizer).items():
        fill_from_whole(tensor, values(name, tensor.shape))
    written(found / "single", POSITION, model, optimizer)
    return ran_by_ranks(work_of_a_rank, 2, found)


def test_two_ranks_that_hold_parts_write_what_one_process_writes(folder: Path) -> None:
    for name in ("step-00000007/training-state.safetensors", "best-00000007/weights.safetensors"):
        assert (folder / "sharded" / name).read_bytes() == (folder / "single" / name).read_bytes()


def test_one_process_resumes_what_two_ranks_saved(folder: Path) -> None:
    model, optimizer = made(seed=5)
    assert loaded(folder / "sharded", model, optimizer) == POSITION
    for name, tensor in state_of(model, optimizer).items():
        assert torch.equal(tensor, values(name, tensor.shape)), name


def test_two_ranks_resume_what_one_process_saved(folder: Path) -> None:
    """Checked by the ranks themselves, each of the whole tensors."""
    assert {each.name for each in folder.glob("done-*")} == {"done-0", "done-1"}


def test_a_bug_of_the_first_ranks_writer_is_raised_by_the_next_save_on_all_ranks(folder: Path) -> None:
    """Where only the first one raised it, the others would wait to gather."""
    for rank in (0, 1):
        assert (folder / f"raised-{rank}").read_text() == "ZeroDivisionError('a bug of ours')"
