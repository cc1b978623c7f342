"""Laws of the time of a step, whatever its numbers."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bertsmith.model.config import BertConfig
from bertsmith.training.planning.cost import Exchange, Links, RankWork, micro_batch_seconds, step_seconds
from bertsmith.training.planning.gpus import GPUS
from bertsmith.training.planning.work import Batch

seconds = st.floats(1e-6, 100)
works = st.builds(RankWork, st.integers(1, 64), seconds, seconds, seconds)
exchanges = st.builds(Exchange, st.floats(1e6, 1e10), st.floats(0, 1e6), st.booleans())
links = st.builds(Links, st.floats(1e8, 1e12), st.floats(1e8, 1e12))
hosts = st.integers(1, 128)
BATCH = Batch(8192, 8192 * 128, 1200, 64)


@given(works, exchanges, links)
def test_one_rank_waits_for_nobody_and_sums_nothing(work: RankWork, exchange: Exchange, link: Links) -> None:
    found = step_seconds(work, exchange, link, 1, 1)
    assert found.waiting == found.sums == 0
    assert found.total == found.compute + found.update + found.data
    assert math.isclose(found.total, max(found.compute + found.update, work.data))


@given(works, exchanges, links, hosts)
def test_what_is_hidden_saves_at_most_a_backward_pass(
    work: RankWork, exchange: Exchange, link: Links, count: int
) -> None:
    open_sums, hidden = (
        step_seconds(work, Exchange(exchange.summed, exchange.last, hides), link, count, 8 * count).sums
        for hides in (False, True)
    )
    assert hidden <= open_sums * (1 + 1e-9)
    assert hidden >= open_sums - work.micro_batch - 1e-9 * open_sums


@given(works, links, hosts, st.floats(1e6, 1e10))
def test_twice_the_bytes_take_longer_and_at_most_twice_as_long(
    work: RankWork, link: Links, count: int, summed: float
) -> None:
    one, two = (step_seconds(work, Exchange(each), link, count, 8 * count).sums for each in (summed, 2 * summed))
    assert one < two <= 2 * one


def test_a_faster_gpu_is_faster_and_a_tiny_model_is_bound_by_launches() -> None:
    config = BertConfig()
    old, new = (micro_batch_seconds(GPUS[name], "bf16", 0.5, config, BATCH) for name in ("a100", "h200"))
    assert new < old
    tiny = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100)
    assert micro_batch_seconds(GPUS["h200"], "bf16", 0.5, tiny, BATCH) == micro_batch_seconds(
        GPUS["a100"], "bf16", 0.5, tiny, BATCH
    )
