"""The hidden states of chosen layers, for every token, as Google's extract_features.py gives them.

Legend: T token slots, L layers, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.states import recorded
from bertsmith.model.encoder import Encoder
from bertsmith.tasks.sequences import Inputs


class LayersModel(nn.Module):
    """An encoder that gives the hidden states behind some of its layers. layers: from -1, the last one, downwards, or
    from 0 upwards. Raises BertsmithError for one that it does not have."""

    def __init__(self, config: BertConfig, layers: Sequence[int], compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.config = config
        count = config.num_hidden_layers
        for each in layers:
            if not -count <= each < count:
                what = f"layer {each} is not one of the model's {count}"
                raise BertsmithError(what, "layers", f"use numbers from -1 to -{count}, or from 0 to {count - 1}")
        self.encoder = Encoder(config, compute)
        self._layers = [each % count + 1 for each in layers]

    def forward(self, inputs: Inputs) -> Tensor:
        """The states of the tokens asked for, those of the layers side by side: fp32[T, L * H]."""
        with recorded(self.encoder, self._layers) as states:
            self.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        return torch.cat([states.hidden[each][: inputs.asked.tokens].float() for each in self._layers], dim=1)
