"""`bertsmith bench scaling`: one rank of one thread beside two, replicated and sharded.

Strong scaling keeps the step and shares it out; weak scaling keeps the work of a rank. All sides step in turns, so that
other work on the machine disturbs them alike; figures are medians of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bertsmith.base.log import say
from bertsmith.base.ranks.launcher import loopback
from bertsmith.bench.child import Answer
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.process import Child
from bertsmith.bench.step.plan import shape
from bertsmith.bench.table import Report, Table
from bertsmith.model.config import BertConfig
from bertsmith.training.planning.model_size import parameters

RANKS = 2
MICRO_BATCHES = (1, 4)
"""Of each rank and step, with two ranks."""
_ROUNDS, _QUICK_ROUNDS = 5, 3
_SEQUENCES, _QUICK_SEQUENCES = 8, 2

KINDS = ("sums", "gathers")
"""What ranks exchange in a step."""


@dataclass(frozen=True)
class Side:
    """A number of ranks, and how they share a step. overlap: sums start during the last backward pass."""

    ranks: int
    mode: str = "replicate"
    overlap: bool = True
    precision: str = "auto"

    @property
    def label(self) -> str:
        """Such as "2 ranks, replicate, without overlap"."""
        if self.ranks == 1:
            return "1 rank"
        return f"{self.ranks} ranks, {self.mode}" + ("" if self.overlap else ", without overlap")


SIDES = (Side(RANKS), Side(RANKS, overlap=False), Side(RANKS, "shard"))


class Ranks:
    """The processes of a side."""

    def __init__(self, side: Side, spec: Mapping[str, Any], folder: Path, ends: ExitStack) -> None:
        self.side = side
        folder.mkdir(parents=True)
        shared = {**asdict(side), **spec, "meeting": f"file://{folder.resolve()}/meeting"}
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback()}
        # Before the children, which end first: its threads wait for them.
        self._pool = ends.enter_context(ThreadPoolExecutor(side.ranks))
        self._children = [
            ends.enter_context(
                Child("bertsmith.bench.scaling.worker", {**shared, "rank": rank}, folder / str(rank), environment)
            )
            for rank in range(side.ranks)
        ]
        self.first = self._all(Child.ready)

    def _all(self, work: Callable[[Child], Answer]) -> list[Answer]:
        """Of each rank. Raises at once where a rank ends: another one may wait for it for half an hour."""
        asked = [self._pool.submit(work, child) for child in self._children]
        for each in as_completed(asked):
            each.result()
        return [each.result() for each in asked]

    def seconds(self, do: str, **arguments: Any) -> float:
        """What all ranks did together; until the last one was done."""
        return max(float(each["seconds"]) for each in self._all(lambda child: child.ask(do, **arguments)))

    def sent(self, kind: str) -> int:
        """The bytes that a rank sends in the collectives of this kind of the last step that was seen."""
        return int(self._children[0].ask("sent", kind=kind)["bytes"])

    def tokens(self, micro_batches: int) -> int:
        """Of a step."""
        own: Sequence[int] = self.first[0]["tokens"]
        return self.side.ranks * sum(own[number % len(own)] for number in range(micro_batches))


def bench_scaling(options: BenchOptions, folder: Path) -> Report:
    """Measures in `folder`, on a CPU. Raises BertsmithError if a rank ends by itself."""
    model = "tiny" if options.quick else "base"
    dims = shape(model)
    spec = {"model": dims, "sequences": _QUICK_SEQUENCES if options.quick else _SEQUENCES}
    rows, size = [], parameters(BertConfig(**dims))
    with ExitStack() as ends:
        sides = [Ranks(side, spec, folder / str(number), ends) for number, side in enumerate((Side(1), *SIDES))]
        for micro_batches in MICRO_BATCHES:
            say(f"measuring steps of {micro_batches} micro-batches a rank")
            rows += _rows(sides, micro_batches, _QUICK_ROUNDS if options.quick else _ROUNDS)
        precision = sides[0].first[0]["precision"]
    about = [
        f"model: {model}, {size.total:,} parameters, {precision}, LAMB; micro-batches of {spec['sequences']} sequences "
        "of 40 to 128 tokens; each rank one thread, ranks joined by gloo on one machine",
        "strong: the step of two ranks beside one rank that does all of it; weak: beside one that does half of it",
        "sides step in turns, after one turn that is not counted; ratios are medians over rounds",
        "sums, gathers: of gradients and of sharded weights; MB that a rank sends in a step, and the time that they "
        "take alone; exposed: what a step is longer than one whose sums and gathers carry a number each",
    ]
    return Report(about, rows, tables(rows))


def _rows(sides: Sequence[Ranks], micro_batches: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each side of several ranks. The first side is one rank."""
    alone, *others = sides
    found, pairs = [], []
    for number in range(rounds + 1):
        same = alone.seconds("step", micro_batches=micro_batches)
        all_of_it = alone.seconds("step", micro_batches=RANKS * micro_batches)
        times = [same, all_of_it, *(each.seconds("step", micro_batches=micro_batches) for each in others)]
        pair = [
            [each.seconds("step", micro_batches=micro_batches, collectives=how) for each in others]
            for how in ("tiny", "seen")
        ]
        if number:
            found.append(times)
            pairs.append([seen - tiny for tiny, seen in zip(*pair, strict=True)])
    return [
        {
            "case": each.side.label,
            "micro_batches": micro_batches,
            "seconds": median(times[place] for times in found),
            "tokens_per_second": each.tokens(micro_batches) / median(times[place] for times in found),
            "strong": median(times[1] / times[place] for times in found),
            "weak": median(times[0] / times[place] for times in found),
            "one_rank_seconds": median(times[1] for times in found),
            "exposed_seconds": median(differences[place - 2] for differences in pairs),
            **{kind: {"bytes": each.sent(kind), "seconds": _alone(each, kind, rounds)} for kind in KINDS},
        }
        for place, each in enumerate(others, start=2)
    ]


def _alone(side: Ranks, kind: str, rounds: int) -> float:
    return median([side.seconds("alone", kind=kind) for _ in range(rounds + 1)][1:])


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Of the rows of a report."""
    return [_scaled(rows), _exchanged(rows)]


def _scaled(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ["", "micro-batches a rank", "a step", "one rank takes", "tokens/s", "strong scaling", "weak scaling"]
    return Table(
        f"{RANKS} ranks beside one",
        head,
        [
            [
                row["case"],
                str(row["micro_batches"]),
                f"{row['seconds']:.2f} s",
                f"{row['one_rank_seconds']:.2f} s",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['strong']:.2f}x",
                f"{row['weak']:.0%}",
            ]
            for row in rows
        ],
    )


def _exchanged(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What the sums and gathers of a step cost; a side without gathers has none in the table."""
    head = ["", "micro-batches a rank", *(f"{kind}{what}" for kind in KINDS for what in (", MB", " alone")), "exposed"]

    def cells(of: Mapping[str, Any]) -> list[str]:
        return [f"{of['bytes'] / 1e6:,.1f}", f"{1e3 * of['seconds']:,.0f} ms"] if of["bytes"] else ["-", "-"]

    return Table(
        "What ranks exchange in a step",
        head,
        [
            [
                row["case"],
                str(row["micro_batches"]),
                *(cell for kind in KINDS for cell in cells(row[kind])),
                f"{1e3 * row['exposed_seconds']:,.0f} ms",
            ]
            for row in rows
        ],
    )
