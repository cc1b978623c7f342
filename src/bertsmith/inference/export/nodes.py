"""A graph of ONNX, put together operator by operator.

Legend: T real tokens, W width of what is mapped, N width of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 20, 10
"""The first version in which LayerNormalization and Gelu are single operators, and the file format that goes with it.
"""
_MOST = 127
Int8 = Literal["operators", "weights"] | None


class Nodes:
    """Operators in the order in which they are run, and the weights that they read.

    int8: how linear maps multiply with weights in int8, each column with a scale of its own. "operators": the graph
    quantises their inputs too, when it is run, and multiplies whole numbers. "weights": the engine sees where weights
    are widened, and decides by itself.
    """

    def __init__(self, int8: Int8) -> None:
        self._int8 = int8
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._quantised: dict[str, list[str]] = {}

    def add(self, operator: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """The name of an operator's result."""
        name = out or f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def weight(self, values: NDArray[Any], name: str) -> str:
        """The name of a constant; the same name again stands for the same values."""
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(values, name)
        return name

    def whole(self, *values: int) -> str:
        """Whole numbers, int64[values]."""
        return self.weight(np.array(values, dtype=np.int64), "whole_" + "_".join(map(str, values)))

    def scalar(self, value: int | float) -> str:
        """One number without a dimension: int64 or fp32."""
        kind = np.int64 if isinstance(value, int) else np.float32
        return self.weight(np.array(value, dtype=kind), f"scalar_{kind.__name__}_{value}")

    def linear(
        self, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32], name: str, shared: str = ""
    ) -> str:
        """x[..., W] -> [..., N]. weight: fp32[N, W], as in torch. bias: fp32[N]. shared: the constant that is this
        weight already; it is not stored twice in fp32."""
        if self._int8 is None and shared:
            product = self.add("MatMul", x, self.add("Transpose", self.weight(weight, shared), perm=[1, 0]))
        elif self._int8 is None:
            product = self.add("MatMul", x, self.weight(weight.T, f"{name}.weight"))
        else:
            product = self._int8_product(x, weight.T, f"{name}.weight")
        return self.add("Add", product, self.weight(bias, f"{name}.bias"))

    def _int8_product(self, x: str, matrix: NDArray[np.float32], name: str) -> str:
        scales = np.maximum(np.abs(matrix).max(0), np.finfo(np.float32).tiny) / np.float32(_MOST)
        rounded = np.rint(matrix / scales).clip(-_MOST, _MOST).astype(np.int8)
        weight, weight_scales = self.weight(rounded, f"{name}_int8"), self.weight(scales, f"{name}_scales")
        if self._int8 == "weights":
            return self.add("MatMul", x, self.add("DequantizeLinear", weight, weight_scales, axis=1))
        if x not in self._quantised:
            names = [f"DynamicQuantizeLinear_{len(self._nodes)}_{number}" for number in range(3)]
            self._nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names, names[0]))
            self._quantised[x] = names
        numbers, scale, zero = self._quantised[x]
        sums = self.add("Cast", self.add("MatMulInteger", numbers, weight, zero), to=TensorProto.FLOAT)
        return self.add("Mul", sums, self.add("Mul", scale, weight_scales))

    def model(self, inputs: Sequence[str], outputs: Mapping[str, Sequence[str | int]]) -> onnx.ModelProto:
        """The graph. inputs: int64[batch, sequence] each. outputs: fp32, the dimensions of each by its name."""
        given = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in inputs]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, "bert", given, made, list(self._weights.values()))
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="bertsmith")
