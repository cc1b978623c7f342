"""Where the time of a prediction goes: the operators of one call of `Predictor` on the real texts of `bench predict`.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/predict_profile.py bf16

The model is the bench's: BERT-base with random weights. Shares are of the time of all operators, each without those
that it calls, after a call that is not counted. Needs $BERTSMITH_DATA.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bertsmith.base.tables import aligned
from bertsmith.bench.predict.texts import QUICK_REAL, REAL, made_classifier, ragged_texts
from bertsmith.inference.predictor import Predictor

_LEAST_SHARE = 0.01


def shares(events: list[Any]) -> list[list[str]]:
    """A line each operator of at least a hundredth of the time, the longest first, then the others together."""
    total = sum(event.self_cpu_time_total for event in events)
    lines, rest = [["operator", "share", "calls"]], 1.0
    for event in sorted(events, key=lambda event: -event.self_cpu_time_total):
        share = event.self_cpu_time_total / total
        if share >= _LEAST_SHARE:
            lines.append([event.key, f"{share:.1%}", f"{event.count:,}"])
            rest -= share
    return [*lines, ["all others", f"{rest:.1%}", ""]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precision", choices=["fp32", "bf16"])
    parser.add_argument("--quick", action="store_true", help="a small model and few texts: to try it out")
    given = parser.parse_args()
    precision, quick = given.precision, given.quick
    with tempfile.TemporaryDirectory() as folder:
        print(made_classifier(Path(folder), quick))
        predictor = Predictor(Path(folder), "cpu", precision=precision)
        texts = ragged_texts(predictor.tokenizer, predictor.max_length, *(QUICK_REAL if quick else REAL))
        if texts is None:
            sys.exit("the texts of SST-2 and SQuAD are not in $BERTSMITH_DATA")
        predictor(texts.texts)
        with profile(activities=[ProfilerActivity.CPU]) as found:
            predictor(texts.texts)
    print(f"{texts.name}, {precision}")
    print("\n".join(aligned(shares(found.key_averages()))))


if __name__ == "__main__":
    main()
