"""What the kernel of the end of half a block must give, in processes that set Triton's switches."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from unittest import mock

import torch
from torch.utils.checkpoint import checkpoint
from triton_checks import machine_code, on_a_gpu, unpacked

from bertsmith.model.cpu.masks import scale_of
from bertsmith.model.linear import Linear
from bertsmith.model.residual import LayerNorm, add_mapped
from bertsmith.model.triton import residual
from bertsmith.model.triton.residual import GROUP, WIDEST, add_normalised_backward, columns_of

KINDS = {"bits": "*u8", "grad_more": "*bf16", "grad_y": "*bf16", "scale": "fp32", "WIDTH": "i32"}


@mock.patch.object(residual, "GROUP", 16)  # the usual one takes the interpreter four times as long
def the_end_of_half_a_block() -> None:
    """In a compiled step on a GPU: outputs and gradients beside float64, with dropout and without, where either output
    is used or both are."""
    for dtype, probability, hidden, used in (
        (torch.float32, 0.0, 192, [0, 1]),
        (torch.float32, 0.1, 192, [1]),
        (torch.float16, 0.0, 256, [0]),
        (torch.float16, 0.1, 192, [0, 1]),
        (torch.float16, 0.1, 256, [1]),
    ):
        rows, close = 2 * residual.GROUP, 1e-6 if dtype == torch.float32 else 1e-3
        torch.manual_seed(0)
        linear, norm = Linear(40, hidden), LayerNorm(hidden, eps=1e-12)
        with torch.no_grad():
            for each in norm.parameters():
                each.normal_()
        x, given = torch.randn(rows, hidden), torch.randn(rows, 40).to(dtype)
        inputs = [x.requires_grad_(), given.requires_grad_(), linear.weight, linear.bias, norm.weight, norm.bias]
        compiled = torch.compile(add_mapped, backend="aot_eager", fullgraph=True, dynamic=False)
        outs = on_a_gpu(compiled)(x, given, linear, norm, probability)
        assert [each.dtype for each in outs] == [torch.float32, dtype]
        saved = outs[0].grad_fn.saved_tensors
        bits = [each for each in saved if each.dtype == torch.uint8]
        assert len(bits) == (probability > 0)
        numbers = sum(each.numel() for each in saved if each.shape == (rows, hidden))
        assert numbers == rows * hidden, "one number for each place, and the bits"
        factors = unpacked(bits[0]).double() * scale_of(probability) if bits else 1.0
        exact_of = [each.detach().double().requires_grad_() for each in inputs]
        total = exact_of[0] + factors * torch.nn.functional.linear(*exact_of[1:4])
        exact = torch.nn.functional.layer_norm(total, (hidden,), *exact_of[4:], eps=1e-12)
        downs = [torch.randn(rows, hidden).to(outs[each].dtype) for each in used]
        torch.autograd.backward([outs[each] for each in used], downs)
        exact.backward(sum(each.double() for each in downs))
        found, wanted = ([each.grad for each in those] for those in (inputs, exact_of))
        for number, (mine, theirs) in enumerate(zip([*outs, *found], [exact, exact, *wanted], strict=True)):
            assert (mine - theirs).norm() < close * theirs.norm(), (dtype, probability, number)
    arguments = [downs[0], x.detach()], [x.detach(), x.detach()[:, :1], norm.weight.detach(), bits[0]], 1.1, dtype
    torch.library.opcheck(add_normalised_backward, arguments, test_utils=("test_schema", "test_faketensor"))
    # With gradient checkpointing the same bits are drawn again.
    grads = []
    for way in (add_mapped, lambda *each: checkpoint(add_mapped, *each, use_reentrant=False)):
        linear.weight.grad = None
        torch.manual_seed(3)
        _, out = on_a_gpu(torch.compile(way, backend="aot_eager", fullgraph=True))(x, given, linear, norm, 0.1)
        out.backward(downs[0])
        grads.append(linear.weight.grad)
    assert torch.equal(*grads)


def compiles(folder: Path, whole: bool) -> None:
    """To machine code of three generations of cards without spilling. whole: with and without dropout, with gradients
    of one dtype or two, and for a fourth generation."""
    from bertsmith.model.triton import kernels as triton_kernels

    function = triton_kernels.add_normalised_backward
    generations = (8, 9, 10, 12) if whole else (8, 9, 10)
    flags = [*itertools.product((False, True), repeat=2)] if whole else [(True, True)]
    for width, generation, (more, drops) in itertools.product((768, 1024, WIDEST), generations, flags):
        shape = columns_of(width) | {"GROUP": GROUP, "MORE": more, "DROPS": drops}
        options = {"num_warps": shape.pop("num_warps")}
        signature = {each: "constexpr" if each in shape else KINDS.get(each, "*fp32") for each in function.arg_names}
        made, spilled, used = machine_code(function, signature, shape, generation, options, folder)
        assert spilled == 0, (width, generation, used)
        assert max(int(each) for each in re.findall(r"REG:(\d+)", used)) <= 64, "1,024 threads of a multiprocessor"
        assert made.metadata.shared <= 50_000
