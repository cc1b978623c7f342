"""Saves from a GPU: copies in pinned memory as the tensors were, which the host does not wait for."""

from __future__ import annotations

from pathlib import Path

import torch

from bertsmith.training.checkpoints import Position
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.checkpoints.state import state_of
from made_checkpoints import loaded, made


def test_a_save_waits_for_nothing_and_later_updates_do_not_change_it(tmp_path: Path) -> None:
    device = torch.device("cuda")
    model, optimizer = made(hidden=256, layers=2)
    model.to(device)
    optimizer.load_state_dict(optimizer.state_dict())
    with Saver(tmp_path, keep=2) as saver:
        saver.save(Position(1, 1, 1), model, optimizer)  # allocates the buffers
        saver.wait()
        assert all(each.is_pinned() for name, each in saver._snapshot.tensors.items() if name.startswith("model."))
        expected = {name: each.cpu().clone() for name, each in state_of(model, optimizer).items()}
        torch.cuda._sleep(200_000_000)  # work in the queue, that a wait would be seen behind
        torch.cuda.set_sync_debug_mode("error")
        try:
            saver.save(Position(2, 1, 2), model, optimizer)
            with torch.no_grad():
                for tensor in state_of(model, optimizer).values():
                    tensor.zero_()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        saver.wait()
    assert loaded(tmp_path, model, optimizer) == Position(2, 1, 2)
    for name, tensor in state_of(model, optimizer).items():
        assert torch.equal(tensor.cpu(), expected[name]), name
