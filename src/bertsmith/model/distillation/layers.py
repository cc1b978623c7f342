"""Which layers of a student learn from, or are taken from, which layers of a larger model."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import nn

from bertsmith.base.errors import BertsmithError
from bertsmith.model.encoder import encoder_of

AUTO = "auto"
"""The layer map that `layer_pairs` works out by itself."""
_PAIR = re.compile(r"\s*(\d+)\s*:\s*(\d+)\s*")


def evenly_spaced(count: int, of: int) -> tuple[int, ...]:
    """`count` of the layers 1 to `of`, rising, the last one among them: 4 of 6 are 2, 3, 5, 6. Of fewer layers than
    `count` some come more than once."""
    return tuple(-(-number * of // count) for number in range(1, count + 1))


def layer_pairs(text: str, student: int, teacher: int) -> tuple[tuple[int, int], ...]:
    """(layer of the student, layer of the teacher) for all that are compared; layer 0 is the embeddings.

    text: "auto" for the embeddings and every layer of the student with those of the teacher, evenly spaced; or pairs,
    such as "0:0,2:3,4:6". student, teacher: how many layers they have. Raises BertsmithError for anything else.
    """
    if text == AUTO:
        return ((0, 0), *zip(range(1, student + 1), evenly_spaced(student, teacher), strict=True))
    fix = "write pairs such as 0:0,2:3,4:6 (student:teacher, 0 for the embeddings), or auto"
    matches = [_PAIR.fullmatch(each) for each in text.split(",")]
    found = [(int(each[1]), int(each[2])) for each in matches if each is not None]
    if len(found) < len(matches):
        raise BertsmithError(f"the layer map is '{text}'", "layer_map", fix)
    for name, place, most in (("student", 0, student), ("teacher", 1, teacher)):
        numbers = [pair[place] for pair in found]
        if max(numbers) > most:
            what = f"the layer map '{text}' names layer {max(numbers)} of the {name}, which has {most}"
            raise BertsmithError(what, "layer_map", fix)
    if len({pair[0] for pair in found}) < len(found):
        raise BertsmithError(f"the layer map '{text}' names a layer of the student twice", "layer_map", fix)
    return tuple(found)


def keep_layers(model: nn.Module, layers: tuple[int, ...]) -> None:
    """Leaves a model with these layers of its encoder alone, numbered from 1, in this order."""
    encoder = encoder_of(model)
    encoder.layers = nn.ModuleList(encoder.layers[number - 1] for number in layers)
    encoder.config = replace(encoder.config, num_hidden_layers=len(layers))
    setattr(model, "config", encoder.config)  # noqa: B010  a plain assignment is typed as one of a module
