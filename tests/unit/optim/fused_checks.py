"""What the kernels of an update must give; they run in processes of their own, which set Triton's switches."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

from bertsmith.optim import fused
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.norms import tensor_norms

# Of a chunk under the interpreter, for which the usual ones are long.
CHUNK = 2048
SHAPES = [(70, 17), (CHUNK,), (CHUNK + 1,), (0, 4), (1,), (7, 5), (2 * CHUNK + 33,)]


@contextmanager
def on_a_cpu() -> Iterator[None]:
    """The kernels take whatever they would take on a GPU, by Triton's interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "can_take", lambda tensors: bool(tensors) and fused._are_plain(tensors))
        patch.setattr(fused, "CHUNK", CHUNK)
        yield


def interpreted() -> None:
    """All checks by Triton's interpreter. The tests come first: pytest rewrites their asserts when it imports them."""
    from made_interpreter import replace_once

    replace_once()
    for each in (tests_of_the_optimizers, norms, few_launches, the_oracle, tensors_of_all_sizes):
        each()


def tests_of_the_optimizers() -> None:
    """What holds for the updates on a CPU holds for the kernels. Two tests take too long here, and one infinity is as
    the other."""
    paths = [str(Path(__file__).with_name(name)) for name in ("test_lamb.py", "test_adamw_and_groups.py")]
    others = "not follows_the_oracle and not large_tensors and not changes_nothing[-inf"
    with on_a_cpu():
        assert pytest.main(["-q", "-p", "no:cacheprovider", "-k", others, *paths]) == 0


def the_oracle() -> None:
    """The property of LAMB, for some examples."""
    from test_lamb import test_follows_the_oracle

    holds = test_follows_the_oracle.hypothesis.inner_test
    for seed, (ratio, limit, scale) in enumerate((("decayed", 1.0, 1.0), ("all", 0.0, 1e-4), ("none", 0.5, 1e3))):
        with on_a_cpu():
            holds(seed=seed, scale=scale, limit=limit, trust_ratio=ratio, corrected=ratio != "all")


def drawn(seed: int, gap: int) -> list[Tensor]:
    """gap: numbers of 4 bytes in front of each tensor, so that no address is a multiple of 16 bytes."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(each, generator=generator) for each in SHAPES]
    return [torch.zeros(gap + each.numel())[gap:].view(each.shape).copy_(each) for each in values]


def updated(kind: type, gap: int) -> tuple[list[Tensor], Tensor]:
    """Weights and moments after some updates, the second of them skipped for a gradient that is no number; the norm."""
    parameters = [torch.nn.Parameter(each) for each in drawn(0, gap)]
    optimizer = kind([{"params": parameters[::2], "weight_decay": 0.1}, {"params": parameters[1::2]}])
    for step in range(3):
        for parameter, gradient in zip(parameters, drawn(1 + step, gap), strict=True):
            parameter.grad = gradient
        if step == 1:
            parameters[0].grad[-1, -1] = float("nan")
        optimizer.set_learning_rate(0.01)
        optimizer.step()
        assert bool(optimizer.finite) is (step != 1)
    moments = [optimizer.state[each][name] for each in parameters for name in ("mean", "mean_square")]
    return [each.detach() for each in (*parameters, *moments)], optimizer.gradient_norm


def tensors_of_all_sizes() -> None:
    """Smaller and larger than a chunk, and empty: those of PyTorch's operators, and the same to the bit twice."""
    for kind in (Lamb, AdamW):
        expected, norm = updated(kind, 0)
        for gap in (0, 1):
            with on_a_cpu():
                found, found_norm = updated(kind, gap)
            torch.testing.assert_close(found, expected, rtol=3e-6, atol=1e-7)
            torch.testing.assert_close(found_norm, norm)
        with on_a_cpu():
            again, _ = updated(kind, 1)
        assert all(map(torch.equal, found, again))


def norms() -> None:
    """Of tensors of all sizes, right to fp32's last digits."""
    tensors = drawn(9, 0)
    with on_a_cpu():
        found = tensor_norms(tensors)
    expected = torch.stack([each.double().norm() for each in tensors])
    torch.testing.assert_close(found.double(), expected, rtol=1e-7, atol=0)


def few_launches() -> None:
    """As many as for one tensor, whatever the number of tensors."""
    seen: list[str] = []
    usual = fused._launch

    def counted(name: str, *arguments: object, **options: object) -> None:
        seen.append(name)
        usual(name, *arguments, **options)

    for count in (1, 40):
        parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(count)]
        for each in parameters:
            each.grad = torch.ones(3)
        for kind, own in ((Lamb, ["moments", "totals", "scaled"]), (AdamW, ["moments"])):
            seen.clear()
            with on_a_cpu(), mock.patch.object(fused, "_launch", counted):
                kind([{"params": parameters, "weight_decay": 0.1}]).step()
            assert seen == ["squares", "totals", *own], seen


def compiles(folder: Path) -> None:
    """Each kernel becomes machine code of three generations of cards, and no register spills."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from bertsmith.optim import kernels

    tables = {"addresses": "*i64", "sizes": "*i64", "owners": "*i32", "firsts": "*i32", "sums": "*fp64", "out": "*fp64"}
    numbers = {"C": "i32", "TENSORS": "i32", **dict.fromkeys(("rest1", "rest2", "epsilon", "decay"), "fp32")}
    shape = {"CHUNK": fused.CHUNK, "W": fused.WIDTH, "ALIGNED": True}
    scaled = [{"SCALED": True}, {"SCALED": False}]
    code, tool = folder / "cubin", Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for name, more in (
        ("squares", {}),
        ("totals", {"W": 256}),
        *(("moments", each) for each in scaled),
        ("scaled", {}),
    ):
        function = getattr(kernels, name)
        constants = {each: value for each, value in (shape | more).items() if each in function.arg_names}
        known = tables | numbers | dict.fromkeys(constants, "constexpr")
        signature = {each: known.get(each, "*fp32") for each in function.arg_names}
        for generation in (80, 90, 100):
            source = ASTSource(fn=function, signature=signature, constexprs=constants)
            made = triton.compile(source, target=GPUTarget("cuda", generation, 32), options=fused.OPTIONS)
            code.write_bytes(made.asm["cubin"])
            used = subprocess.run([tool, "-res-usage", code], capture_output=True, text=True, check=True).stdout
            assert re.findall(r"STACK:(\d+)", used) == ["0"], used
            if name != "totals":
                assert "v4.b32" in made.asm["ptx"], "aligned tensors are read 16 bytes at a time"


if __name__ == "__main__":
    if sys.argv[1:]:
        compiles(Path(sys.argv[1]))
    else:
        interpreted()
