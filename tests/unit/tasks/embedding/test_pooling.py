"""Hidden states as one vector for each sequence, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.embedding.pooling import POOLINGS, VectorModel, pooled
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import encode, pack
from bertsmith.tasks.task import Runner
from bertsmith.tokens.tokenizer import Tokenizer
from made_models import small_config

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
CONFIG = replace(small_config(), vocab_size=len(PIECES))
CPU = torch.device("cpu")


def drawn_model(pooling: str, unit: bool = True) -> VectorModel:
    torch.manual_seed(0)
    model = VectorModel(CONFIG, pooling, unit=unit)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def sequences(lengths: list[int]):
    texts = [" ".join("abcdefghijklmnopqrst"[(place + number) % 20] for place in range(length))
             for number, length in enumerate(lengths)]  # fmt: skip
    return encode([Record(text, None, None, "") for text in texts], TOKENIZER, 24)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from(POOLINGS))
def test_pooling_is_that_of_each_sequence_by_itself(lengths, pooling):
    hidden = torch.randn(sum(lengths), 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    found = pooled(hidden, offsets, pooling)
    by = {"mean": lambda part: part.mean(0), "cls": lambda part: part[0], "max": lambda part: part.amax(0)}
    expected = torch.stack([by[pooling](part) for part in hidden.split(lengths)])
    assert torch.allclose(found, expected, atol=1e-6)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (ours,), (theirs,) = (torch.autograd.grad((each * weights).sum(), hidden) for each in (found, expected))
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_no_sequences_give_no_vectors(pooling):
    assert pooled(torch.zeros(0, 4), torch.zeros(1, dtype=torch.int64), pooling).shape == (0, 4)


@pytest.mark.parametrize("unit", [True, False])
def test_vectors_have_length_one_where_that_is_wanted(unit):
    rows = sequences([1, 4, 9])
    vectors = drawn_model("mean", unit)(pack(rows, np.arange(3), CPU))
    assert torch.allclose(vectors.norm(dim=1), torch.ones(3), atol=1e-6) == unit


@pytest.mark.parametrize("pooling", POOLINGS)
@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 18), min_size=1, max_size=8), budget=st.integers(20, 120))
def test_a_vector_depends_on_its_own_text_alone(pooling, lengths, budget):
    rows, model = sequences(lengths), drawn_model(pooling)
    together = Runner(CPU, budget).scores(model, rows)
    for number in range(len(lengths)):
        with torch.no_grad():
            alone = model(pack(rows, np.array([number]), CPU))[0].numpy()
        assert np.allclose(together[number], alone, atol=2e-6)


def test_the_pooler_stays_as_it_is():
    model = drawn_model("mean")
    model(pack(sequences([3, 5]), np.arange(2), CPU)).sum().backward()
    assert model.encoder.pooler.weight.grad is None
    assert model.encoder.layers[0].attention.output.weight.grad is not None
