"""The back-ends made for cards, held equal to the CPU's own: one padded block through SDPA, and the Triton kernels.

The Triton kernels run here through Triton's interpreter; where there is no wheel of Triton, these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.layout import Layout
from bertsmith.model.attention import attend as attend_module
from bertsmith.model.attention.attend import _is_ampere, attend, back_end
from bertsmith.model.attention.packed import Offsets, Packed
from bertsmith.model.attention.padded import padded_attention
from bertsmith.model.embedding_lookup import _looked_up, look_up
from bertsmith.model.triton import attention as triton_attention
from bertsmith.model.triton import gelu as triton_gelu
from made_models import distance

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any)


def drawn(tokens: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, keys and values [T, 3, H], and the gradient of the output [T, H]."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(tokens, 3, width, generator=generator, dtype=torch.float64)
    return qkv.to(dtype), torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype)


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, heads=st.sampled_from([1, 2, 4]), more=st.integers(0, 9), seed=st.integers(0, 2**31))
def test_padded_rows_are_padded_blocks(lengths: list[int], heads: int, more: int, seed: int) -> None:
    """Also where `longest` is a bound that no sequence reaches."""
    layout = Layout.from_lengths(lengths, max(lengths) + more)
    qkv, weights = drawn(layout.tokens, 8, seed)
    ours, theirs = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    where = Offsets(torch.from_numpy(layout.offsets).int(), layout.tokens, layout.longest)
    out, expected = padded_attention(ours, heads, where, 0.0), attend(theirs, heads, Packed(layout))
    assert distance(out, expected) < 1e-13
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    assert distance(ours.grad, theirs.grad) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_empty_sequences_and_padding_give_no_nan(dtype: torch.dtype) -> None:
    layout = Layout.from_lengths([0, 5, 0, 1, 0, 0], longest=16)
    qkv, weights = drawn(6, 16, 0, dtype)
    qkv.requires_grad_()
    out = padded_attention(qkv, 2, Offsets(torch.from_numpy(layout.offsets).int(), 6, 16), 0.0)
    (out * weights).sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(qkv.grad).all()


def test_padded_rows_drop_probabilities() -> None:
    """Kept ones are scaled up, so that the mean over many draws is what no dropout gives."""
    layout = Layout.from_lengths([7, 3])
    qkv, _ = drawn(10, 8, 1)
    where = Packed(layout)
    plain = padded_attention(qkv, 2, where, 0.0)
    torch.manual_seed(0)
    draws = torch.stack([padded_attention(qkv, 2, where, 0.3) for _ in range(2000)])
    assert distance(draws[0], plain) > 0.1
    assert distance(draws.mean(0), plain) < 0.05
    torch.manual_seed(0)
    assert torch.equal(padded_attention(qkv, 2, where, 0.3), draws[0])


def test_rows_looked_up_for_the_compiler_are_plain_ones() -> None:
    table = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([2, 2, 0, 6, 2])
    assert torch.equal(_looked_up(table, ids), look_up(table, ids))
    assert torch.autograd.gradcheck(lambda table: _looked_up(table, ids), table)
    torch.library.opcheck(_looked_up, (table, ids), test_utils=("test_schema", "test_faketensor"))


def test_the_back_end_follows_from_device_dtype_and_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.model.attention.attend._is_ampere", lambda index: index == 0)
    monkeypatch.setattr("bertsmith.model.attention.attend._is_faster_in_ours", lambda index: False)
    monkeypatch.setattr("bertsmith.model.triton.attention.HAS_TRITON", True)
    new, old = torch.device("cuda", 0), torch.device("cuda", 1)
    even, uneven = Packed(Layout.from_lengths([9, 12])), Packed(Layout.from_lengths([100, *[1] * 50]))
    fixed, half, wide = Offsets(even.offsets, 21, 12), torch.bfloat16, torch.float32

    def chosen(device: torch.device, dtype: torch.dtype, packed: Offsets, dropout: float, width: int = 64) -> str:
        return back_end(device, dtype, 12, width, packed, dropout)

    assert chosen(new, half, fixed, 0.0) == chosen(new, half, uneven, 0.0) == "flash varlen"
    assert chosen(new, half, fixed, 0.1) == "Triton varlen"
    monkeypatch.setattr("bertsmith.model.attention.attend._is_faster_in_ours", lambda index: True)
    assert chosen(new, half, fixed, 0.0) == chosen(new, half, uneven, 0.0) == "Triton varlen"
    assert chosen(new, half, fixed, 0.0, width=32) == "flash varlen", "other widths were not timed"
    assert chosen(new, half, fixed, 0.1, width=24) == chosen(new, half, fixed, 0.0, width=300) == "padded rows"
    assert chosen(new, wide, fixed, 0.0) == chosen(new, wide, even, 0.1) == chosen(old, half, fixed, 0.1)
    assert chosen(old, half, fixed, 0.1) == chosen(CPU, half, fixed, 0.1) == "padded rows"
    assert chosen(new, wide, uneven, 0.0) == chosen(CPU, wide, even, 0.0) == "padded blocks"
    monkeypatch.setattr("bertsmith.model.triton.attention.HAS_TRITON", False)
    assert chosen(new, half, fixed, 0.1) == "padded rows"
    assert chosen(new, half, fixed, 0.0) == "flash varlen"


@pytest.mark.parametrize(
    ("generation", "installed", "faster"), [(9, False, True), (9, True, False), (8, False, False), (10, False, False)]
)
def test_our_kernels_are_taken_without_dropout_where_they_were_faster(
    generation: int, installed: bool, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (generation, 0))
    monkeypatch.setattr(attend_module, "_has_package", lambda: installed)
    assert attend_module._is_faster_in_ours(0) is faster


@pytest.mark.parametrize(
    ("generation", "installed", "fails", "taken"),
    [(9, True, False, "FA3"), (9, True, True, None), (9, False, False, None), (8, True, False, None)],
)
def test_flash_attention_for_hopper_is_asked_for_by_its_name(
    generation: int,
    installed: bool,
    fails: bool,
    taken: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    class Handle:
        def remove(self) -> None:
            pass

    def register() -> Handle:
        calls.append("FA3")
        if fails:
            raise RuntimeError("no backward kernels")
        return Handle()

    monkeypatch.setitem(torch.nn.attention._registry._FLASH_ATTENTION_IMPLS, "FA3", register)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (generation, 0))
    monkeypatch.setattr(attend_module, "_has_package", lambda: installed)
    attend_module._take_hoppers.cache_clear()
    try:
        for _ in range(2):
            attend_module.settle("flash varlen", torch.device("cuda", 0))
        assert torch.nn.attention.current_flash_attention_impl() == taken
        assert len(calls) == (installed and generation == 9)
        assert ("no backward kernels" in caplog.text) is fails
    finally:
        attend_module._take_hoppers.cache_clear()
        torch.nn.attention.restore_flash_attention_impl(_raise_warn=False)


def test_draws_are_numbered_in_31_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_attention, "HAS_TRITON", True)
    assert triton_attention.can_run(2**28 - 1, 64, 64)
    assert not triton_attention.can_run(2**28, 64, 64)
    assert not triton_attention.can_run(2**28 - 1, 65, 64), "a part of eight keys is a draw too"


def test_groups_of_rows_are_numbered_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU refuses to start a kernel with more blocks along its second axis."""
    monkeypatch.setattr(triton_gelu, "HAS_TRITON", True)
    most = torch.empty(triton_gelu.GROUP * (2**16 - 1), 1, device="meta")
    assert triton_gelu.can_run(most)
    assert not triton_gelu.can_run(torch.cat((most, most[: triton_gelu.GROUP])))


def test_an_amd_gpu_takes_no_option_of_nvidias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton refuses a limit of registers there; an MI300 calls itself 9.4, as if it were a Hopper."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    generation = triton_attention._generation.__wrapped__(torch.device("cuda", 0))
    assert "maxnreg" not in triton_attention.how_to_run("backward_of_queries", 64, torch.bfloat16, generation, 128)


def test_what_is_asked_of_a_card_is_marked_as_the_compiler_marks_it() -> None:
    marked = torch.compiler.assume_constant_result(lambda device: True)
    for each in (_is_ampere, attend_module._is_faster_in_ours):
        assert vars(marked).items() <= vars(each).items()


TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (it has wheels for Linux alone)"
)


def run_apart(code: str, *arguments: str, **environment: str) -> str:
    """What a Python process of its own prints: Triton reads its switches when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "unit" / "model"), *sys.path]),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@TRITON
def test_the_triton_kernels_by_their_interpreter() -> None:
    alike = ("without_dropout", "scores_far_below_zero", "with_dropout", "keys_with_queries_or_alone")
    checks = (
        *alike,
        "in_a_graph",
        "the_benchmark",
        "bits_of_dropout",
        "dropout_in_a_graph",
        "activations_and_their_biases",
        "a_block_in_a_graph",
    )
    calls = [*(f"triton_checks.{each}()" for each in checks), "half_block_checks.the_end_of_half_a_block()"]
    begin = ["import half_block_checks, made_interpreter, triton_checks", "made_interpreter.replace_once()"]
    run_apart("\n".join([*begin, *calls]), TRITON_INTERPRET="1")


@TRITON
@pytest.mark.parametrize(
    "whole",
    ["", pytest.param("yes", marks=[pytest.mark.slow, pytest.mark.timeout(1500)])],
    ids=["few ways", "all ways"],
)
def test_the_triton_kernels_compile_for_cards(whole: str, tmp_path: Path) -> None:
    """To machine code of Ampere, Hopper and Blackwell, without a card; registers spill on Ampere alone."""
    modules = ("half_block_checks", "triton_checks")
    calls = [f"{each}.compiles(pathlib.Path(sys.argv[1]), bool(sys.argv[2]))" for each in modules]
    code = "\n".join([f"import pathlib, sys, {', '.join(modules)}", *calls])
    run_apart(code, str(tmp_path), whole, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
