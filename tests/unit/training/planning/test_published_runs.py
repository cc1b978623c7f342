"""NVIDIA's published runs: those on one GPU calibrate, and those on many are predicted within 10%."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from bertsmith.base.files import read_json
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.plan import VOCABULARY
from bertsmith.training.planning import calibration, cost
from bertsmith.training.planning.calibration import calibration_lines, predicted, product_share, share_of
from bertsmith.training.planning.cost import micro_batch_seconds, update_seconds
from bertsmith.training.planning.gpus import GPUS
from bertsmith.training.planning.published import BERT_LARGE, OWN, Row, one_gpu, several_gpus
from made_pages import ROOT


def name(row: Row) -> str:
    return f"{row.gpu}-{row.precision}-{row.length}-{row.hosts}x{row.gpus}-{row.rate:g}"


@pytest.mark.parametrize("found", predicted(), ids=lambda each: name(each.row))
def test_rows_of_several_gpus_are_predicted_within_a_tenth(found) -> None:
    assert (abs(found.error) <= 0.1) != found.row.is_excluded


def test_the_rows_are_those_that_were_published() -> None:
    """By what the tables say beside their rates: how far the throughput grew from one host to 32, and the batches."""
    rates = {(row.precision, row.length, row.hosts): row.rate for row in several_gpus() if row.gpu == "a100"}
    for (precision, length, hosts), growth in {
        ("tf32", 128, 32): 30.45,
        ("fp16", 128, 32): 30.37,
        ("tf32", 512, 16): 14.21,
        ("tf32", 512, 32): 24.95,
        ("fp16", 512, 16): 15.51,
        ("fp16", 512, 32): 30.13,
    }.items():
        assert rates[precision, length, hosts] / rates[precision, length, 1] == pytest.approx(growth, abs=0.02)
    accumulated = {
        (row.precision, row.length): row.share / row.micro_batch for row in several_gpus() if row.hosts == 32
    }
    assert accumulated == {("tf32", 128): 2, ("fp16", 128): 1, ("tf32", 512): 8, ("fp16", 512): 4}


@pytest.mark.parametrize("row", [*one_gpu(), *OWN], ids=name)
def test_a_row_of_one_gpu_is_met_by_its_own_share(row: Row) -> None:
    gpu, batch = GPUS[row.gpu], row.sequence.times(row.share)
    seconds = micro_batch_seconds(gpu, row.precision, product_share(row), BERT_LARGE, batch)
    seconds += update_seconds(gpu, BERT_LARGE, row.optimizer)
    assert row.share / seconds == pytest.approx(row.rate)
    assert 0.2 < product_share(row) < 0.9


def test_both_phases_on_32_hosts_take_the_hours_that_were_published() -> None:
    rates = {(each.row.precision, each.row.length): each.rate for each in predicted() if each.row.hosts == 32}
    for precision, published, within in (("fp16", 1.2, 0.05), ("tf32", 2.4, 0.07)):
        hours = (7038 * 65_536 / rates[precision, 128] + 1563 * 32_768 / rates[precision, 512]) / 3600
        assert hours == pytest.approx(published, rel=within)


def test_what_was_not_measured_is_called_assumed() -> None:
    assert "assumed" not in share_of("a100", "bf16", 128).source
    assert "assumed, not measured on an H200 141 GB" in share_of("h200", "fp16", 128).source
    assert "NVIDIA's published run on one A100 80 GB" in share_of("h200", "fp16", 128).source
    short, long = share_of("a100", "bf16", 128), share_of("a100", "fp16", 300)
    assert short.value > long.value == share_of("a100", "bf16", 512).value


def test_our_own_rows_are_those_that_were_measured_and_stand_for_the_same_processor() -> None:
    stored = read_json(ROOT / "benchmarks" / "results" / "nvidia-h200.json")["rows"]
    for row, set_name in zip(
        OWN, ("256 with Wikipedia's lengths at 128", "64 with Wikipedia's lengths at 512"), strict=True
    ):
        (found,) = (each for each in stored if each["case"] == f"large, {set_name}: bf16, AdamW, compiled")
        assert row.rate == pytest.approx(found["sequences_per_second"], rel=1e-4)
        lengths = np.concatenate([lengths_of("wikipedia", row.sequences, row.length, seed) for seed in range(2)])
        batches = [
            pretrain_batch(lengths_of("wikipedia", row.sequences, row.length, seed), VOCABULARY, seed)
            for seed in range(2)
        ]
        masked = sum(len(each.masked_positions) for each in batches) / len(lengths)
        assert astuple(row.mean) == pytest.approx((lengths.mean(), (lengths**2).mean(), masked, 1), rel=1e-3)
        own, like = share_of("h200", "bf16", row.length), share_of("h100", "bf16", row.length)
        assert "assumed" not in own.source
        assert "our run on one H200" in own.source
        assert "assumed, not measured" in like.source
        assert like.value == own.value
    assert "SQuAD" in share_of("h200", "bf16", 384, finetuning=True).source, "which was not measured"


def test_the_errors_are_printed_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """And come from the constants: with links of no width they are large."""
    lines = calibration_lines(predicted())
    assert sum("%*" in line for line in lines) == 2
    assert len(lines) == len(one_gpu()) + len(OWN) + len(several_gpus()) + 11
    monkeypatch.setattr(cost, "LINK_SHARE", 0.005)
    assert max(abs(each.error) for each in calibration.predicted()) > 0.3
