"""The page's colours can be told from their ground by eyes that see little contrast, in light and in dark."""

from __future__ import annotations

import re
from importlib import resources

import pytest

STYLE = resources.files("bertsmith.report").joinpath("page.css").read_text(encoding="utf-8")


def colours(scheme: str) -> dict[str, tuple[int, ...]]:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found = re.findall(r"--(\w+): #(\w{6})", light if scheme == "light" else dark)
    return {name: tuple(bytes.fromhex(value)) for name, value in found}


def luminance(colour: tuple[float, ...]) -> float:
    """By WCAG 2.2."""
    parts = [each / 255 for each in colour]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_curves_have_enough_contrast(scheme: str) -> None:
    found = colours(scheme)
    ground = found["ground"]
    assert all(contrast(found[name], ground) >= 4.5 for name in ("ink", "faint", "strong"))
    assert contrast(found["ink"], found["raised"]) >= 4.5
    curves = [name for name in found if re.fullmatch(r"c\d", name)]
    assert len(curves) == 8
    # Keys of curves are words in the curve's colour.
    assert all(contrast(found[name], ground) >= 4.5 for name in curves)
    darkest = tuple(0.7 * bar + 0.3 * base for bar, base in zip(found["bar"], ground, strict=True))
    assert contrast(found["ink"], darkest) >= 4.5, "a count in a full cell of the confusion matrix"


def test_both_schemes_have_the_same_colours_and_nothing_is_loaded() -> None:
    assert colours("light").keys() == colours("dark").keys()
    assert "url(" not in STYLE
    assert "@import" not in STYLE
