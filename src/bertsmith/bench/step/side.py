"""One side of a step bench: model, device, precision, optimizer, and its label in the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SideName = Literal["ours", "transformers"]
OURS: SideName = "ours"
TRANSFORMERS: SideName = "transformers"


@dataclass(frozen=True)
class StepSide:
    """side: ours or transformers. model: fields of a `BertConfig`, dropout included. precision: fp32, tf32 or bf16, for
    transformers by autocast. onednn: fp32 products of the peer by oneDNN, a switch of the whole process. compiled: by
    torch.compile; ours in fixed shapes, the peer padded to `longest` and not to the longest of each batch. padded:
    ours, with every sequence padded to `longest`. longest: for these two. flash: the peer's attention by the package
    flash_attn, which leaves padding out. graphs: ours compiled, as CUDA graphs, "auto" where training takes them."""

    side: SideName = OURS
    model: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    precision: str = "bf16"
    optimizer: Literal["adamw", "lamb"] = "adamw"
    onednn: bool = False
    compiled: bool = False
    padded: bool = False
    longest: int = 0
    flash: bool = False
    graphs: Literal["auto", "true", "false"] = "auto"

    @property
    def label(self) -> str:
        """Its name in a table: "bf16, AdamW"."""
        numbers = (
            f"{self.precision} autocast" if (self.side, self.precision) == (TRANSFORMERS, "bf16") else self.precision
        )
        if (self.side, self.precision) == (TRANSFORMERS, "fp32"):
            numbers = "fp32 by oneDNN" if self.onednn else "fp32 as shipped"
        more = [name for name in ("padded", "compiled") if getattr(self, name)] + ["flash attention"] * self.flash
        more += {"auto": [], "true": ["CUDA graphs"], "false": ["no CUDA graphs"]}[self.graphs]
        dropout = [self.model.get(f"{each}_dropout_prob", 0.1) for each in ("hidden", "attention_probs")]
        if dropout != [0.1, 0.1]:
            more.append("no dropout" if not any(dropout) else f"dropout {dropout[0]:g}, of attention {dropout[1]:g}")
        return ", ".join([numbers, {"adamw": "AdamW", "lamb": "LAMB"}[self.optimizer], *more])
