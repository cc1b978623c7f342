"""What WikiExtractor leaves of formulas, templates and tags goes, is counted, and nothing else goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.tally import Tally
from bertsmith.corpus.sources.wikiextractor import without_remains


def clean(text: str) -> tuple[str, int]:
    changed = Tally()
    return without_remains(text, "a", changed), changed.count


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        ("the mean of formula_16 and formula_17, (codice_3)", "the mean of formula and formula, (code)", 3),
        ("the formula_5th treatment", "the formula treatment", 1),
        ("my_formula_5 and formula_x", "my_formula_5 and formula_x", 0),
        ("Andorra (; ], ]), officially () a (state)", "Andorra, officially a (state)", 2),
        ("call main() or f( ) and (...) then", "call main() or f( ) and (...) then", 0),
        ("()\nat a line's begin", "()\nat a line's begin", 0),
        ('one<br>two<BR />three<ref name="x">four</ref>', "one\ntwo\nthreefour", 4),
        ("a <b and c> d, <iostream>, x<y>z", "a <b and c> d, <iostream>, x<y>z", 0),
    ],
)
def test_remains(text: str, expected: str, count: int) -> None:
    assert clean(text) == (expected, count)


@given(st.text(st.sampled_from("ab( )<>[];,\n_1.")))
def test_what_counts_nothing_changes_nothing(text: str) -> None:
    cleaned, count = clean(text)
    assert (cleaned == text) == (count == 0)
