"""Whether training uses the C++ kernels is said with its reason, and kernels that are wrong are left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu.kernels import prepare_training
from made_kernels import kernels_unused, plant, threads


def are_used() -> bool:
    return cpu_kernels.can_take(torch.zeros(1, 1, dtype=torch.bfloat16))


def about_kernels(said: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in said.messages if "what stands between" in line or "kernels" in line]


def test_training_in_bf16_uses_them_and_says_so(kernels: None, said: pytest.LogCaptureFixture) -> None:
    with kernels_unused():
        assert not are_used()
        prepare_training(torch.bfloat16)
        assert are_used()
    assert about_kernels(said) == [
        "what stands between a CPU's products: C++ kernels, compiled here (one visit to memory instead of several)"
    ]


@pytest.mark.parametrize("compute", [torch.float32, torch.float16], ids=str)
def test_no_other_precision_loads_them(compute: torch.dtype, said: pytest.LogCaptureFixture) -> None:
    prepare_training(compute)
    assert not are_used()
    assert not about_kernels(said)


def test_nothing_is_compiled_where_nothing_may_be(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_kernels, "load", None)
    prepare_training(torch.bfloat16, may_compile=False)
    assert not are_used()
    assert about_kernels(said) == [
        "what stands between a CPU's products: PyTorch's operators (nothing is to be compiled)"
    ]


def test_without_a_compiler_the_reason_is_said(said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    prepare_training(torch.bfloat16)
    assert not are_used()
    (line,) = about_kernels(said)
    assert line.startswith("what stands between a CPU's products: PyTorch's operators (")


def check_that_they_are_warned_about(said: pytest.LogCaptureFixture) -> None:
    assert not cpu_kernels.load()
    assert not are_used()
    assert [record.levelname for record in said.records if "something else" in record.message] == ["WARNING"]
    assert not any("compiled here" in line for line in said.messages)


def test_kernels_that_are_wrong_are_warned_about_and_not_used(
    kernels: None, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kernels_unused():
        monkeypatch.setattr(cpu_kernels, "_are_right", lambda: False)
        check_that_they_are_warned_about(said)


FAULTS = {
    "no mean": ("float mean = total / columns;", "float mean = 0;"),
    "no epsilon's deviation": ("1.0f / std::sqrt(squares / columns + epsilon)", "1.0f"),
    "bf16 cut off at the wrong place": ("<< 16;", "<< 15;"),
    "no bias, with dropout": ("(wide(yr[c]) + bias[c]) * factors[c]", "wide(yr[c]) * factors[c]"),
    "no bias, without dropout": ("(wide(yr[c]) + bias[c]);", "wide(yr[c]);"),
    "a bias behind the dropout": ("(wide(yr[c]) + bias[c]) * factors[c]", "wide(yr[c]) * factors[c] + bias[c]"),
    "nothing is dropped": ("? kept : 0.0f", "? kept : kept"),
    "too much is dropped": ("bits[c] >= threshold", "bits[c] >= 2 * threshold"),
    "the scale is forgotten": ("kept = scale_", "kept = 1.0f"),
    "other places on the way back": ("float by_y = bx[c] * factors[c]", "float by_y = bx[c]"),
    "the bias's gradient, with dropout": ("biases[c] += by_y", "biases[c] += bx[c]"),
    "the bias's gradient, without dropout": ("biases[c] += bx[c]", "biases[c] = bx[c]"),
    "the weight's gradient": ("weights[c] += g[c] * normal", "weights[c] += g[c]"),
    "the shift's gradient": ("shifts[c] += g[c]", "shifts[c] += 1"),
    "one of two gradients": ("+ wide(by_narrow[r * columns + c])", ""),
    "the mean on the way back": ("- first -", "-"),
    "padding is seen": ("std::fill(rounded + length, rounded + columns, bf16(0xff80));", ""),
    "odds that do not add up": ("narrow(odds[c] * share) & 0x7fff", "narrow(odds[c]) & 0x7fff"),
    "dropped odds go on": ("kept[c] = is_kept ? rounded[c] : bf16(0)", "kept[c] = rounded[c]"),
    "dropped odds go on, on the way back": (
        "kept[c] = row[c] & 0x8000 ? bf16(0) : row[c]",
        "kept[c] = row[c] & 0x7fff",
    ),
    "dropped odds have gradients": ("row[c] & 0x8000 ? 0.0f : wide(by[c])", "wide(by[c])"),
    "the softmax's way back": ("narrow((g[c] - shared)", "narrow((g[c])"),
    "the activation's slope": ("wide(b[c]) * slopes[xr[c]]", "wide(b[c])"),
    "the slope of another number": ("slopes[xr[c]]", "slopes[xr[c] & 0x7fff]"),
    "the activation's sums": ("sums[c] += value", "sums[c] = value"),
    "threads that are not added up": ("sum += sums_[at]", "sum = sums_[at]"),
    "an ignored label that counts": ("if (labels[r] < 0) {", "if (labels[r] < 0) { all_losses[thread] += 1;"),
    "all of equals count": ("std::none_of(row, row + labels[r], is_as_high)", "true"),
    "an ignored label's gradient": ("if (by_scores) std::fill(by, by + columns, bf16(0));", ""),
    "the label's score": ("- (score - highest)", ""),
    "a loss that is not of all classes": ("std::log(double(total))", "0"),
    "the loss's gradient": ("by[c] = narrow(odds[c] * share)", "by[c] = narrow(odds[c])"),
    "the gradient of the label's score": ("odds[labels[r]] * share - 1.0f", "odds[labels[r]] * share"),
    "right labels are not counted": ("all_rights[thread] += score == highest &&", "all_rights[thread] += false &&"),
    "wrong labels are right": ("all_rights[thread] += score == highest &&", "all_rights[thread] +="),
    "the last column is not turned": ("c = r < top ? left : 0;", "c = r < top ? columns : 0;"),
}


@pytest.mark.usefixtures("kernels", "marked_memory")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_their_source_is_found(
    said: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plant(cpu_kernels, FAULTS[fault], tmp_path, monkeypatch)
    # Compiled in half the time.
    monkeypatch.setattr("bertsmith.base.compiled_cpp._FLAGS", ("-std=c++17", "-O0", "-fopenmp", "-fPIC"))
    with threads(2), kernels_unused():  # what threads add up can be wrong with more than one alone
        check_that_they_are_warned_about(said)
