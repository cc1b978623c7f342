"""Whether training uses the C++ kernels is said with its reason and kept by a run; wrong kernels are left out."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bertsmith.model.cpu import compiled_cpp, library, prepare
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.prepare import KERNELS, OPERATORS, end_training, load, prepare_training
from bertsmith.model.linear import Linear, activated
from made_kernels import kernels_unused, plant, threads

SAID = "between matrix products: "
both_dtypes = pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16], ids=str)


def are_used() -> bool:
    used = {dtype: can_take(torch.zeros(1, 1, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)}
    assert len(set(used.values())) == 1
    return used[torch.bfloat16]


def about_kernels(said: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in said.messages if SAID in line or "kernels" in line]


@both_dtypes
def test_training_uses_them_and_says_so(kernels: None, said: pytest.LogCaptureFixture, compute: torch.dtype) -> None:
    with kernels_unused():
        assert not are_used()
        assert prepare_training(compute) == KERNELS
        assert are_used()
    assert about_kernels(said) == [f"{SAID}C++ kernels (compiled here, one visit to memory instead of several)"]


def test_each_thread_uses_them_for_itself(kernels: None) -> None:
    """A model gives the same numbers while another thread trains, and the end of training changes nothing between
    another thread's forward and backward pass."""
    with ThreadPoolExecutor(1) as other:
        assert not other.submit(are_used).result()
        assert other.submit(load).result()
        out = other.submit(lambda: activated(torch.ones(2, 3), Linear(3, 4), "gelu").sum()).result()
        end_training()
        assert (are_used(), other.submit(are_used).result()) == (False, True)
        other.submit(out.backward).result()


def test_they_are_looked_at_once_in_a_process(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(prepare, "are_right", lambda: looked.append(len(looked)) or True)
    with kernels_unused():
        for _ in range(3):
            assert load()
            end_training()
    assert looked == [0]


def test_no_other_precision_loads_them(said: pytest.LogCaptureFixture) -> None:
    assert prepare_training(torch.float16) == ""
    assert not are_used()
    assert not about_kernels(said)


@both_dtypes
def test_nothing_is_compiled_where_nothing_may_be(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, compute: torch.dtype
) -> None:
    monkeypatch.setattr(library, "load", None)
    assert prepare_training(compute, may_compile=False) == OPERATORS
    assert not are_used()
    assert about_kernels(said) == [f"{SAID}PyTorch's operators (nothing is to be compiled)"]


def test_without_a_compiler_the_reason_is_said(said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert prepare_training(torch.bfloat16) == OPERATORS
    assert not are_used()
    (line,) = about_kernels(said)
    assert line.startswith(f"{SAID}PyTorch's operators (")


@pytest.mark.parametrize(
    ("compute", "started_with", "found", "warned"),
    [
        (torch.float32, None, KERNELS, ""),
        (torch.float32, "", OPERATORS, ""),
        (torch.float32, OPERATORS, OPERATORS, ""),
        (torch.float32, KERNELS, KERNELS, ""),
        (torch.bfloat16, OPERATORS, OPERATORS, ""),
        (torch.bfloat16, KERNELS, KERNELS, ""),
        (torch.bfloat16, "kernels", KERNELS, "started with kernels of an earlier version"),
        (torch.bfloat16, "kernels and matrix units", KERNELS, "kernels and matrix units of an earlier version"),
        (torch.bfloat16, "operators", OPERATORS, "started with operators of an earlier version"),
        (torch.float16, None, "", ""),
        (torch.float16, "", "", ""),
    ],
    ids=str,
)
def test_a_run_keeps_what_it_started_with(
    kernels: None,
    said: pytest.LogCaptureFixture,
    compute: torch.dtype,
    started_with: str | None,
    found: str,
    warned: str,
) -> None:
    """In fp32 a run without a record had no kernels; in bf16 earlier versions had other products."""
    assert prepare_training(compute, started_with=started_with) == found
    assert are_used() == (found != OPERATORS)
    warnings = [record.message for record in said.records if record.levelname == "WARNING"]
    assert len(warnings) == bool(warned)
    assert all(warned in line and f"resumed with {found}" in line for line in warnings)


def test_a_run_that_cannot_keep_its_kernels_is_warned_about(
    kernels: None, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with kernels_unused():
        assert prepare_training(torch.float32, started_with=KERNELS) == OPERATORS
    (warning,) = [record.message for record in said.records if record.levelname == "WARNING"]
    assert "started with C++ kernels between matrix products and is resumed with PyTorch's operators" in warning


def check_that_they_are_warned_about(said: pytest.LogCaptureFixture) -> None:
    assert not load()
    assert not are_used()
    assert [record.levelname for record in said.records if "something else" in record.message] == ["WARNING"]
    assert not any("compiled here" in line for line in said.messages)


def test_kernels_that_are_wrong_are_warned_about_and_not_used(
    kernels: None, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kernels_unused():
        monkeypatch.setattr(prepare, "are_right", lambda: False)
        check_that_they_are_warned_about(said)


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("architecture", ["", "x86-64-v3"])
def test_every_compiler_makes_kernels_that_are_right(
    monkeypatch: pytest.MonkeyPatch, compiler: str, architecture: str
) -> None:
    """In PyTorch's own threads: a library of OpenMP that the compiler brought would be a second one."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("BERTSMITH_ARCHITECTURE", architecture)
    before = openmp_libraries()
    with threads(2), kernels_unused():
        assert load()
    assert openmp_libraries() == before


def openmp_libraries() -> set[str]:
    """Those in this process; other packages may have brought theirs."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    return {path for path in mapped if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))}


FAULTS = {
    "no mean": ("const float mean = total / columns;", "const float mean = 0;"),
    "no epsilon's deviation": ("1.0f / std::sqrt(squares / columns + epsilon)", "1.0f"),
    "bf16 cut off at the wrong place": ("uint32_t(x) << 16", "uint32_t(x) << 15"),
    "bf16 rounded at the wrong place": ("(bits + 0x7fff + ", "(bits + 0xffff + "),
    "no bias, with dropout": ("(wide(yr[c]) + bias[c]) * factors[c]", "wide(yr[c]) * factors[c]"),
    "no bias, without dropout": ("(wide(yr[c]) + bias[c]);", "wide(yr[c]);"),
    "a bias behind the dropout": ("(wide(yr[c]) + bias[c]) * factors[c]", "wide(yr[c]) * factors[c] + bias[c]"),
    "nothing is dropped": ("? kept : 0.0f", "? kept : kept"),
    "too much is dropped": ("bits[c] >= threshold", "bits[c] >= 2 * threshold"),
    "the scale is forgotten": ("kept = scale_", "kept = 1.0f"),
    "dropout is forgotten": ("narrow<Number>(wide(xr[c]) * factors[c])", "xr[c]"),
    "no narrow output": ("n[c] = narrow<Number>(o[c])", "n[c] = narrow<Number>(s[c])"),
    "other places backward": ("const float value = gx[c] * factors[c]", "const float value = gx[c]"),
    "the bias's gradient, with dropout": ("biases[c] += value", "biases[c] += gx[c]"),
    "the bias's gradient, without dropout": ("biases[c] += gx[c]", "biases[c] = gx[c]"),
    "the weight's gradient": ("weights[c] += g[c] * normal", "weights[c] += g[c]"),
    "the shift's gradient": ("shifts[c] += g[c]", "shifts[c] += 1"),
    "one of two gradients": ("g[c] = wides[c] + wide(narrows[c])", "g[c] = wides[c]"),
    "the mean backward": ("- first -", "-"),
    "padding is seen": ("std::fill(rounded + length, rounded + columns, narrow<Number>(-INFINITY));", ""),
    "a maximum that is none": ("wide(row[c + l]) > highest[l]", "wide(row[c + l]) < highest[l]"),
    "probabilities that do not add up": (
        "magnitude(narrow<Number>(powers[c] * share))",
        "magnitude(narrow<Number>(powers[c]))",
    ),
    "dropped probabilities are used": ("kept[c] = is_dropped ? Number(0) : rounded[c]", "kept[c] = rounded[c]"),
    "dropped probabilities are used again": (
        "kept[c] = is_negative(row[c]) ? Number(0) : row[c]",
        "kept[c] = magnitude(row[c])",
    ),
    "dropped probabilities have gradients": ("is_negative(row[c]) ? 0.0f : wide(grad[c])", "wide(grad[c])"),
    "the softmax's gradient": ("narrow<Number>((g[c] - shared)", "narrow<Number>((g[c])"),
    "the sign of fp32": ("return bits_of(x) >> 31", "return bits_of(x) >> 29"),
    "the exponential": ("1.6666665459e-1f", "1.7666665459e-1f"),
    "gelu's bell": ("x * bell * 0.398942280f", "x * bell"),
    "gelu's tail": ("x < 0.0f ? outside", "x > 0.0f ? outside"),
    "the other gelu's rise": ("x * rise", "rise"),
    "the other gelu's share": ("twice < 0.0f ? power * share", "twice < 0.0f ? share"),
    "relu": ("x <= 0.0f ? 0.0f : 1.0f", "x <= 1.0f ? 0.0f : 1.0f"),
    "the activation is forgotten": ("* Activation::derivative(wide(xr[c]))", ""),
    "the activation's sums": ("sums[c] += value", "sums[c] = value"),
    "blocks that are not added up": ("total[c] += sums_[block + c]", "total[c] = sums_[block + c]"),
    "rows left out": ("blocks * (thread + 1) / threads * size", "blocks * (thread + 1) / threads * size - 1"),
    "an ignored label that counts": ("if (labels[r] < 0) {", "if (labels[r] < 0) { *losses.of(r) += 1;"),
    "all of equals count": ("std::none_of(row, row + labels[r], is_as_high)", "true"),
    "an ignored label's gradient": ("if (gradient) std::fill(grad, grad + columns, Number(0));", ""),
    "the label's score": ("- (score - highest)", ""),
    "a loss that is not of all classes": ("std::log(double(total))", "0"),
    "the loss's gradient": ("grad[c] = narrow<Number>(powers[c] * share)", "grad[c] = narrow<Number>(powers[c])"),
    "the gradient of the label's score": ("powers[labels[r]] * share - 1.0f", "powers[labels[r]] * share"),
    "right labels are not counted": ("*rights.of(r) += score == highest &&", "*rights.of(r) += false &&"),
    "wrong labels are right": ("*rights.of(r) += score == highest &&", "*rights.of(r) +="),
}


# Most of a second for each, to compile: all take half a minute, so every other one is for `make test-slow`.
HERE, LATER = list(FAULTS)[::2], list(FAULTS)[1::2]
# Compiled in half the time.
FLAGS = ("-std=c++17", "-O0", "-fPIC")


@pytest.fixture(scope="module")
def standard_headers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A header of all that the kernels include from C++'s library, which the compiler has read already: to read it
    takes a third of a compilation."""
    header = tmp_path_factory.mktemp("headers") / "standard.h"
    texts = [path.read_text(encoding="utf-8") for path in library._SOURCE.parent.glob("*.[ch]*")]
    header.write_text("".join(sorted({f"{each}\n" for text in texts for each in re.findall("#include <.+>", text)})))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_cpp, "_FLAGS", FLAGS)
        command = [*compiled_cpp._compiler(), *compiled_cpp._flags()]
    subprocess.run([*command, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return str(header)


@pytest.mark.usefixtures("kernels", "marked_memory")
@pytest.mark.parametrize("fault", [*HERE, *(pytest.param(each, marks=pytest.mark.slow) for each in LATER)])
def test_a_fault_in_their_source_is_found(
    said: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    fault: str,
) -> None:
    headers = request.getfixturevalue("standard_headers")  # where `kernels` has found a compiler
    plant(FAULTS[fault], tmp_path, monkeypatch)
    monkeypatch.setattr(compiled_cpp, "_FLAGS", (*FLAGS, "-include", headers))
    with threads(2), kernels_unused():  # what threads add up can be wrong with more than one alone
        check_that_they_are_warned_about(said)
