"""What a plan makes of the passes that it times on a CPU."""

from __future__ import annotations

from threading import Barrier

import pytest
import torch

from bertsmith.base import device
from bertsmith.base.device import choose_device
from bertsmith.base.log import counted
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.library import is_loaded
from bertsmith.optim.adamw import AdamW
from bertsmith.training.planning import on_cpu
from bertsmith.training.planning.on_cpu import Measuring, Timed, at_once, rest_of, share_of_layers
from bertsmith.training.planning.work import Batch


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "together", "crowded"),
    [
        (1, 2, 2, 1, 1.0),
        (2, 1, 2, 2, 1.0),
        (4, 1, 2, 2, 2.0),
        (2, 2, 2, 1, 2.0),  # as OMP_NUM_THREADS may have it
        (1, 1, 2, 1, 1.0),
        (3, 2, 4, 2, 1.5),
    ],
)
def test_what_ranks_have_more_of_than_there_are_cores_takes_longer(
    ranks: int, threads: int, cores: int, together: int, crowded: float
) -> None:
    assert at_once(ranks, threads, cores) == (together, crowded)


def _with_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (on_cpu, device):
        monkeypatch.setattr(module, "default_workers", lambda: count)


@pytest.mark.parametrize(("ranks", "set_by_user", "threads"), [(1, False, 1), (2, False, 4), (2, True, 1)])
def test_a_plan_has_the_threads_of_the_run(
    monkeypatch: pytest.MonkeyPatch, ranks: int, set_by_user: bool, threads: int
) -> None:
    """Of one rank PyTorch's own, 1 in these tests; of several their share of the cores, unless the user set
    OMP_NUM_THREADS, which PyTorch takes when it starts."""
    if set_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
    else:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    _with_cores(monkeypatch, 8)
    seen = []

    def trial(*_: object) -> tuple[dict[str, Timed], float]:
        seen.append(torch.get_num_threads())
        return {"all": Timed(1.0, 1.0)}, 1.0

    monkeypatch.setattr(on_cpu, "_trial", trial)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        measuring = Measuring(BertConfig(vocab_size=10), choose_device("cpu", "fp32"), {}, None, "adamw", AdamW)
        found = on_cpu.measure(measuring, ranks, 0.0)
    finally:
        torch.set_num_threads(before)
    assert seen == [threads] * ranks
    assert f", {counted(threads, 'thread')} a rank" in found.name


def test_ranks_that_are_timed_together_have_the_same_kernels(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_cores(monkeypatch, 2)
    both, seen = Barrier(2), []

    def trial(*_: object) -> tuple[dict[str, Timed], float]:
        both.wait(timeout=60)
        seen.append(is_loaded())
        return {"all": Timed(1.0, 1.0)}, 1.0

    monkeypatch.setattr(on_cpu, "_trial", trial)
    on_cpu.measure(Measuring(BertConfig(vocab_size=10), choose_device("cpu", "fp32"), {}, None, "adamw", AdamW), 2, 0.0)
    assert seen == [True, True]


def test_two_passes_tell_a_layer_from_the_rest() -> None:
    assert rest_of(1.0 + 3 * 2.0, 1.0 + 2.0, 3, 0.9) == pytest.approx(1.0)
    assert rest_of(0.5 + 2 * 2.0, 0.5 + 2.0, 2, 0.9) == pytest.approx(0.5)


def test_a_pass_that_was_disturbed_leaves_layers_a_part_of_the_time() -> None:
    assert rest_of(7.0, 6.9, 3, 0.8) == pytest.approx(7.0 * 0.6), "the pass of one layer took too long"
    assert rest_of(9.0, 2.0, 3, 0.8) == 0.0, "the pass of three did"


def test_the_share_of_layers_is_that_of_their_products() -> None:
    config = BertConfig(vocab_size=1000, hidden_size=64, num_attention_heads=2, intermediate_size=256)
    sequence = Batch(tokens=20.0, squares=500.0, masked=3.0, sequences=1.0)
    layers = 3 * (6 * (4 * 64**2 + 2 * 64 * 256) * 20 + 12 * 64 * 500)
    rest = 6 * ((64**2 + 64 * 1000) * 3 + 64**2 + 64 * 2)
    assert share_of_layers(config, 3, sequence) == pytest.approx(layers / (layers + rest))
