"""Matrix products for gradients of weights on a CPU.

Legend: K what is summed over, M and N the sides of what comes out.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from bertsmith.base.processor import this_processor


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """a [K, M] transposed times b [K, N], in their dtype.

    In half precision with matrix units (AMX) oneDNN takes nearly twice as long for it as for a product with a copy that
    was transposed before. A copy of what is wider than b costs what it gains (decision 009).
    """
    on_cpu = a.device.type == "cpu"
    copied = on_cpu and a.element_size() == 2 and a.shape[1] <= b.shape[1] and _has_matrix_units()
    return torch.mm(a.t().contiguous() if copied else a.t(), b)


@cache
def _has_matrix_units() -> bool:
    """Whether this processor has AMX."""
    return this_processor().has("amx_bf16")
