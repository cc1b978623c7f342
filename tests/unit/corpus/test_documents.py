"""Documents some at once: all of them, in their order, in lists of a bounded size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.documents import batched


@given(st.lists(st.text(max_size=9)), st.integers(0, 30))
def test_batches_end_where_they_are_full(texts: list[str], most: int) -> None:
    batches = list(batched(iter(texts), len, most))
    assert [text for batch in batches for text in batch] == texts
    assert all(batches)
    assert all(sum(map(len, batch)) > most for batch in batches[:-1])
    assert all(sum(map(len, batch[:-1])) <= most for batch in batches)
