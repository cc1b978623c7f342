"""The loss that tells pairs of like texts from all others, and the ranks that measure it, against plain words."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.embedding.ranking import (
    NO_TEXT,
    SCALE,
    barred,
    ranking_losses,
    ranks_of_like,
    rows_with_shared_texts,
)


def drawn(rows: int, texts: int, width: int = 5, seed: int = 0) -> torch.Tensor:
    draw = torch.randn(rows, texts, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(draw, dim=-1)


def numbered(rows: int, texts: int) -> torch.Tensor:
    """All different."""
    return torch.arange(rows * texts).view(rows, texts)


def in_plain_words(texts: list[list[int]]) -> list[set[tuple[int, int]]]:
    """For each row the (row, place) of the texts that it is told from, its own like text among them."""
    found = []
    for number, (anchor, like, *_) in enumerate(texts):
        told_from = set()
        for other, (its_anchor, *candidates) in enumerate(texts):
            for place, text in enumerate(candidates, start=1):
                if (other, place) == (number, 1):
                    told_from.add((other, place))
                elif text == NO_TEXT or text in (anchor, like) or (place == 1 and its_anchor == anchor):
                    continue
                else:
                    told_from.add((other, place))
        found.append(told_from)
    return found


def losses_in_plain_words(vectors: torch.Tensor, texts: list[list[int]]) -> list[float]:
    found = []
    for number, told_from in enumerate(in_plain_words(texts)):
        cosines = {each: float(vectors[number, 0] @ vectors[each]) for each in told_from}
        total = sum(math.exp(SCALE * cosine) for cosine in cosines.values())
        found.append(-math.log(math.exp(SCALE * cosines[number, 1]) / total))
    return found


# Few numbers, so that texts are shared between rows in all ways.
ROWS = st.integers(2, 3).flatmap(
    lambda texts: st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), *[st.integers(-1, 5)] * (texts - 2)), min_size=1, max_size=7
    )
)


@settings(max_examples=30)
@given(ROWS, st.integers(0, 99))
def test_the_loss_is_that_of_plain_words_whatever_texts_are_shared(rows, seed):
    texts = torch.tensor(rows)
    vectors = drawn(*texts.shape, seed=seed)
    losses, right = ranking_losses(vectors, texts)
    assert losses.tolist() == pytest.approx(losses_in_plain_words(vectors, texts.tolist()), abs=1e-9)
    for number, told_from in enumerate(in_plain_words(texts.tolist())):
        best = max(told_from, key=lambda each: float(vectors[number, 0] @ vectors[each]))
        assert bool(right[number]) == (best == (number, 1))


@settings(max_examples=30)
@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 99))
def test_losses_and_ranks_do_not_depend_on_the_order_of_rows(rows, random, seed):
    texts = torch.tensor(rows)
    vectors = drawn(*texts.shape, seed=seed)
    order = random.sample(range(len(rows)), len(rows))
    assert ranking_losses(vectors[order], texts[order])[0].tolist() == pytest.approx(
        ranking_losses(vectors, texts)[0][order].tolist(), abs=1e-9
    )
    narrow, numbers = vectors.float().numpy(), texts.numpy()
    assert ranks_of_like(narrow[order], numbers[order]).tolist() == ranks_of_like(narrow, numbers)[order].tolist()


@settings(max_examples=30)
@given(ROWS, st.integers(0, 99))
def test_ranks_count_the_texts_that_are_as_near(rows, seed):
    texts = torch.tensor(rows)
    vectors = drawn(*texts.shape, width=3, seed=seed)
    found = ranks_of_like(vectors.float().numpy(), texts.numpy())
    for number, told_from in enumerate(in_plain_words(texts.tolist())):
        cosines = {each: float(vectors[number, 0] @ vectors[each]) for each in told_from}
        nearer = sum(cosine >= cosines[number, 1] for cosine in cosines.values())
        assert found[number] == nearer


@pytest.mark.parametrize("texts", [2, 3])
def test_the_loss_is_that_of_sentence_transformers(texts):
    reason = "sentence-transformers is not installed"
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses", reason=reason)
    vectors = (3 * drawn(9, texts)).requires_grad_()  # it scales them to length 1 itself
    theirs = losses.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=SCALE)
    expected = theirs.compute_loss_from_embeddings(list(vectors.unbind(1)), None)
    (wanted,) = torch.autograd.grad(expected, vectors)
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    found = ranking_losses(unit, numbered(9, texts))[0].mean()
    (gradient,) = torch.autograd.grad(found, vectors)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    assert torch.allclose(gradient, wanted, atol=1e-12)


def test_equal_texts_are_not_taken_for_unlike_ones():
    texts = torch.tensor([[0, 1], [0, 2], [3, 1], [4, 0], [5, 6]])
    expected = [
        [False, True, True, True, False],  # 1: the anchor is the same; 2: the like text; 3: its like text is our anchor
        [True, False, False, True, False],
        [True, False, False, False, False],
        [False, False, False, False, False],
        [False, False, False, False, False],
    ]
    assert barred(texts, torch.arange(5)).tolist() == expected


def test_some_rows_are_barred_as_among_all():
    texts = torch.tensor([[0, 1, -1], [0, 2, 5], [3, 1, 0], [4, 0, 1]])
    every = barred(texts, torch.arange(4))
    assert torch.equal(barred(texts, torch.tensor([2, 0])), every[[2, 0]])


def test_vectors_that_are_all_alike_find_nothing():
    assert ranks_of_like(np.ones((40, 2, 4), np.float32) / 2, numbered(40, 2).numpy()).tolist() == [40] * 40


def test_ranks_are_the_same_in_several_blocks(monkeypatch):
    vectors, texts = drawn(10, 3, width=2).float().numpy(), numbered(10, 3).numpy()
    expected = ranks_of_like(vectors, texts).tolist()
    monkeypatch.setattr("bertsmith.tasks.embedding.ranking._COSINES_AT_ONCE", 3 * 20)
    assert ranks_of_like(vectors, texts).tolist() == expected
    assert len(set(expected)) > 2


@settings(max_examples=30)
@given(ROWS)
def test_rows_that_share_a_text_are_counted(rows):
    every = [text for row in rows for text in row[:3]]
    expected = sum(any(every.count(text) > row.count(text) for text in row[:2]) for row in rows)
    texts = np.array(rows)
    # A text that is the anchor's and its own negative does not come: such rows are refused.
    if not any(row[2:] and row[2] in row[:2] for row in rows):
        assert rows_with_shared_texts(texts) == expected
