"""The tables of `gpu_expected.py`: counts, expected times and rates, and the kernels that move most."""

from __future__ import annotations

from gpu_cost import BACKWARD, CARDS, FORWARD, GPU, MEASURED, Row, Work, expectations, matrix_rate, parts, times

from bertsmith.base.tables import aligned
from bertsmith.training.planning.gpus import GPUS

AIMS = {(128, 0.0): 0.50, (512, 0.0): 0.45, (128, 0.1): 0.42, (512, 0.1): 0.40}
"""Shares of the matrix rate by length and attention dropout, for BERT-large on one H100 or H200."""
AIMED_SLOTS = 16_384
"""Aims are of micro-batches of at least so many."""
TOP = 10


def table(rows: list[Row]) -> list[str]:
    """Counts, expected times, and the kernels that move most, as aligned text."""
    first = next(row for row in rows if row["graph"] == FORWARD)
    step = [row for row in rows if named(row) == named(first)] + [update_of(rows, first["model"])]
    return [
        *(
            "Counts of each pass: kernels launched, GB moved and kept for the backward pass, TFLOP of products",
            "",
            *count_lines(rows),
            "",
        ),
        *(f"Expected on one {GPU.name}, with {MEASURED}; aims are of BERT-large", "", *expected_lines(rows), ""),
        *("Expected of each row of `make gpu-check`; GPU and host of the first", "", *named_lines(rows), ""),
        *(f"Where the bytes of fused kernels go: {named(first)}, with {MEASURED}", "", *kind_lines(step)),
    ]


def named(row: Row) -> str:
    """The case of a row; the model's name where it has none."""
    return str(row.get("case", row["model"]))


def update_of(rows: list[Row], model: str) -> Row:
    """The update that `make gpu-check` measures."""
    return next(row for row in rows if row["model"] == model and row["graph"] == f"update, {MEASURED}")


def count_lines(rows: list[Row]) -> list[str]:
    """A line a pass."""
    names = ("fused", "products", "attention", "others")
    cells = [["", "pass", "launches:", *names, "GB:", *names, "kept", "TFLOP:", *names[1:3]]]
    for row in rows:
        work = parts(row)
        launches = [f"{work[name].launches:,.0f}" for name in names]
        size = [f"{work[name].bytes / 1e9:,.1f}" for name in names]
        flop = [f"{work[name].flop / 1e12:,.2f}" for name in names[1:3]]
        graph = row["graph"].removeprefix("losses ")
        cells.append([named(row), graph, "", *launches, "", *size, f"{row['kept'] / 1e9:,.1f}", "", *flop])
    return aligned(cells, "llr")


def expected_lines(rows: list[Row]) -> list[str]:
    """A line a case: milliseconds of a step of one micro-batch and an update, and the share of the matrix rate."""
    head = ["", "slots", "products", "attention", "fused", "others", "update", "GPU, ms", "host, ms"]
    cells = [[*head, "real tokens/s", "of the matrix rate", "without update", "aim"]]
    for forward, backward in zip(*(of(rows, graph) for graph in (FORWARD, BACKWARD)), strict=True):
        update = update_of(rows, forward["model"])
        found = times((forward, backward), update)
        shares = [forward["useful_flop"] / seconds / matrix_rate() for seconds in (found.step, found.batch)]
        aimed = forward["model"] == "large" and forward["tokens"] >= AIMED_SLOTS
        aim = AIMS.get((forward["length"], forward["attention_dropout"])) if aimed else None
        cells.append(
            [
                *(named(forward), f"{forward['tokens']:,}"),
                *(f"{1e3 * seconds:.1f}" for seconds in (*found.parts.values(), found.gpu, found.host)),
                *(f"{forward['real_tokens'] / found.step:,.0f}", *(f"{share:.0%}" for share in shares)),
                f"{aim:.0%}" if aim else "",
            ]
        )
    return aligned(cells)


def named_lines(rows: list[Row]) -> list[str]:
    """A line a row of `make gpu-check`, on both GPUs."""
    cells = [["", "", *(GPUS[card].name for card in CARDS), "GPU, ms", "host, ms"]]
    for name, found in expectations(rows).items():
        if name.startswith("update") and f": {rows[0]['model']}, " not in name:
            continue  # of other models it is measured within steps alone
        values = [f"{found[card]:{found['as']}}" for card in CARDS]
        parts_of = found.get("milliseconds", {}).get(CARDS[0], {})
        cells.append(
            [name, found["what"], *values, *(f"{parts_of[each]:.1f}" if parts_of else "" for each in ("GPU", "host"))]
        )
    return aligned(cells, "llr")


def of(rows: list[Row], graph: str) -> list[Row]:
    """Those of a graph."""
    return [row for row in rows if row["graph"] == graph]


def kind_lines(rows: list[Row]) -> list[str]:
    """The kinds of fused kernels that move most bytes in a step."""
    kinds = []
    for row in rows:
        for name, (launches, size) in row["kernels"].items():
            work = Work()
            work.add(launches, size)
            kinds.append((size, launches, 1e3 * work.seconds, row["graph"], name))
    total = sum(kind[0] for kind in kinds)
    cells = [["GB", "of all", "launches", "ms", "pass", "operators in it"]]
    for size, launches, ms, graph, name in sorted(kinds, reverse=True)[:TOP]:
        cells.append([f"{size / 1e9:.1f}", f"{size / total:.0%}", f"{launches}", f"{ms:.1f}", graph, name])
    return aligned(cells, "rrrrl")
