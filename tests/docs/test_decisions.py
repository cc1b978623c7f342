"""What decision 020 says of presets is what they have."""

from __future__ import annotations

import re

from bertsmith.recipes.loader import load_recipe, presets
from made_pages import page

PAGE = page("decisions/020-left-for-the-first-gpu.md")
ROW = re.compile(r"^\| `(\S+)` \| (\d+) of (\d+) \| ([\d,]+) \|", re.MULTILINE)


def test_the_presets_have_the_shapes_of_the_table() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) == 4
    for name, layers, hidden, slots in rows:
        recipe = load_recipe(name, [])
        assert (recipe.model.layers, recipe.model.hidden) == (int(layers), int(hidden))
        assert recipe.micro_batch_tokens == int(slots.replace(",", ""))


def test_all_presets_but_one_compute_gelu_by_tanh() -> None:
    assert "which all presets but `quickstart` compute (`gelu_pytorch_tanh`" in PAGE
    found = {name for name in presets() if load_recipe(name, budget=True).model.activation != "gelu_pytorch_tanh"}
    assert found == {"quickstart"}
