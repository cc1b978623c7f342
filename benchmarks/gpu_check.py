"""The GPU's tests and measurements, in calls of nine minutes; without a GPU it says what they would be.

Each row is in the file as soon as it is made; one that fails is named there and passed over, and so is what the time
was too short for: --go-on measures that. It needs torch, numpy, pytest and, for the peer, transformers; what prepares
text is not needed, and no network.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from checkout import ROOT
from gpu_cost import expectations

from bertsmith.base import log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import read_json
from bertsmith.base.versions import git_state
from bertsmith.bench.gpu.plan import TESTS, CheckSizes, check_parts
from bertsmith.bench.gpu.rows import PASSED, Part, Rows, calls_of, in_order, is_right, is_whole, measure_parts, tables
from bertsmith.bench.machine import machine
from bertsmith.bench.process import NO_TIME, OutOfTime, last_line
from bertsmith.bench.step.bench import about_steps
from bertsmith.bench.step.profile import IDLE
from bertsmith.bench.step.results import time_groups
from bertsmith.bench.step.run import StepRun
from bertsmith.bench.table import Report, Table

# Of the nine minutes, half of one is for imports before the clock runs, and for the end.
TOTAL_SECONDS, TEST_SECONDS = 510.0, 200.0
TEST_PATHS = ("tests/house/test_torch_names.py", "tests/gpu")
EXPECTED = ROOT / "benchmarks" / "results" / "gpu-expected.json"
CARDS = {"h100": "H100", "h200": "H200"}
PARTS = {"products": "matrix products", "attention": "attention", "update": "optimizer", "the GPU idle": IDLE}
"""Of a step, by the group of its kernels; all else are fused kernels, and others that wait for memory."""


def main() -> int:
    """Measures the rows in their order for as long as there is time; returns the exit status. The tables come last.
    Raises BertsmithError for a file of rows that is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for the rows; by default one of benchmarks/results")
    parser.add_argument(
        "--only",
        type=expression,
        nargs="+",
        default=[""],
        help="only the rows in whose names one of these regular expressions is found, in this order",
    )
    parser.add_argument("--go-on", action="store_true", help="keep the rows that the file has, and measure the others")
    parser.add_argument("--again", action="store_true", help="with --go-on, measure anew what --only chooses")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help="in which all must be done")
    parser.add_argument("--show", type=Path, help="print what a stored file has, and measure nothing")
    parser.add_argument("--tiny", action="store_true", help="every row at a tiny size, on a CPU too, without the tests")
    asked = parser.parse_args()
    if asked.tiny and not asked.json:
        parser.error("--tiny needs --json: its figures say nothing, and have no place among the results")
    if asked.again and not (asked.go_on and asked.only != [""]):
        parser.error("--again needs --go-on, for there is a row to measure anew, and --only, which says what rows")
    if asked.show and (asked.go_on or asked.only != [""] or asked.json or asked.tiny):
        parser.error("--show prints all that its file has, and takes no other option")
    if asked.go_on and asked.json and not asked.json.is_file():
        parser.error(f"{asked.json} is not there, so --go-on has no rows to keep")
    has_gpu = torch.cuda.is_available()
    started = time.monotonic()
    command = f'make gpu-check ARGS="{shlex.join(sys.argv[1:])}"' if sys.argv[1:] else "make gpu-check"
    sizes = CheckSizes.tiny_on("cuda" if has_gpu else "cpu") if asked.tiny else CheckSizes()
    if asked.show:
        print(stored_report(asked.show).as_text())
        return 0
    with tempfile.TemporaryDirectory(prefix="bertsmith-gpu-check-") as made:
        gpu = torch.cuda.get_device_name(0) if has_gpu else "cpu"
        head = {"command": command, "gpu": gpu, "torch": torch.__version__, "calls": [call_of(command)]}
        rows = Rows(asked.json or ROOT / "benchmarks" / "results" / f"{file_name(gpu)}.json", head, machine())
        rows.again = asked.again
        rows.expected = {} if asked.tiny else expectations(read_json(EXPECTED)["rows"])
        parts, run = check_parts(sizes, Path(made), rows, run_tests)
        if asked.tiny:  # for a CPU, which may be busy: a slow part is no sign that it hangs
            parts = [replace(part, seconds=math.inf) for part in parts if TESTS not in part.names]
        for only in asked.only:
            if not any(re.search(only, name) for part in parts for name in part.names):
                print(f"gpu-check: no row has a name with '{only}'", file=sys.stderr)
                return 2
        if not has_gpu and not asked.tiny:
            if asked.go_on and not asked.json:
                parser.error("without a GPU, --go-on needs a file after --json, and lists what it lacks")
            if asked.go_on:
                take_rows(rows, read_rows(asked.json))
            print("\n".join(would_do(parts, rows, asked.only, asked.seconds)))
            return 0
        if asked.go_on:
            keep_rows(rows)
        elif rows.to.is_file() and (count := len(read_rows(rows.to)["rows"])):
            print(f"gpu-check: {rows.to} has {count} rows, which would be lost", file=sys.stderr)
            print("  fix:   --go-on keeps them; or name another file with --json, or remove this one", file=sys.stderr)
            return 2
        log.configure()
        keep_kernels()
        rows.write()
        for only in asked.only:
            measure_parts(parts, rows, started + asked.seconds, only)
        rows.head["calls"][-1]["machine"] = rows.machine
        rows.head["about"] = about_steps(run, "made-up pieces in pairs as long as those of English Wikipedia")
        rows.write()
    return tell(parts, rows, run, command)


def expression(text: str) -> str:
    """ArgumentTypeError for what is no regular expression."""
    try:
        re.compile(text)
    except re.error as why:
        raise argparse.ArgumentTypeError(f"'{text}' is no regular expression: {why}") from why
    return text


def tell(parts: Sequence[Part], rows: Rows, run: StepRun, command: str) -> int:
    """Prints what was found, and gives the exit status: 1 for tests that failed, a kernel that is not as exact as it
    has to be, and for no row at all."""
    found = all_tables(parts, rows, rows.head["gpu"])
    report = Report(rows.head["about"], rows.made, found, rows.machine, command)
    failed = [f"  {name}: {last_line(why)}" for name, why in rows.failed.items()]
    print("\n".join([f"gpu-check: {len(rows.made)} rows in {rows.to}, {len(failed)} not measured", *failed]))
    if NO_TIME in rows.failed.values():
        print("gpu-check: with --go-on, the next call keeps these rows and measures what no time was left for")
    print(f"\n{report.as_text()}")
    wrong = [row["case"] for row in rows.made if not is_right(row)]
    for name in wrong:
        print(f"gpu-check: NOT AS IT MUST BE: {name}")
    return 0 if rows.made and not wrong else 1


def all_tables(parts: Sequence[Part], rows: Rows, gpu: str) -> list[Table]:
    """Of the rows, of what was expected of them, and of where the time of steps goes. gpu: by its name."""
    timed = {row["case"]: row["kernels"] for row in rows.made if "kernels" in row}
    card = next((card for card, name in CARDS.items() if name in gpu), None)
    counted = [row for row in rows.made if "kernels" in row and "expected" in row]
    return [
        *tables(parts, rows),
        *([beside_expected(rows.made)] if any("expected" in row for row in rows.made) else []),
        *([parts_beside_expected(counted, card)] if counted and card else []),
        *([kernels_table(timed)] if timed else []),
    ]


def parts_beside_expected(made: Sequence[Mapping[str, Any]], card: str) -> Table:
    """A line for each compiled step: where its milliseconds were expected to go, and where they went."""
    shown = []
    for row in made:
        expected, groups = row["expected"]["milliseconds"][card], row["kernels"]["groups"]
        tokens = row["expected"][card] * max(expected["GPU"], expected["host"]) / 1e3
        # Rows of earlier versions do not have their number.
        steps = row["kernels"].get("steps") or round(row["kernels"]["seconds"] * row["ours"] / tokens)
        found = {name: groups.get(group, 0.0) for name, group in PARTS.items()}
        found["all else"] = sum(groups.values()) - sum(found.values())
        wanted = {name: expected[name] for name in ("products", "attention", "update")}
        wanted["all else"] = expected["GPU"] - sum(wanted.values())
        wanted["the GPU idle"] = max(0.0, expected["host"] - expected["GPU"])
        cells = [(f"{wanted[name]:.1f}", f"{1e3 * found[name] / steps:.1f}") for name in found]
        shown.append([row["case"], *(cell for pair in cells for cell in pair)])
    head = [words for name in (*PARTS, "all else") for words in (f"{name}: expected", "found")]
    return Table(f"Milliseconds of a step, expected on an {CARDS[card]} and found", ["", *head], shown)


def kernels_table(timed: Mapping[str, Any]) -> Table:
    """A line for each step: what share of the time the GPU spends on what."""
    groups = [group for group in time_groups() if any(group in found["groups"] for found in timed.values())]
    shown = [
        [case, *(f"{found['groups'].get(group, 0.0) / found['seconds']:.1%}" for group in groups)]
        for case, found in timed.items()
    ]
    return Table("Where the GPU's time of a compiled step goes", ["", *groups], shown)


def stored_report(path: Path) -> Report:
    """Of a file that a call wrote, with how many of its rows no table shows."""
    stored = read_rows(path)
    rows = Rows(path, {}, stored["machine"], made=stored["rows"])
    with tempfile.TemporaryDirectory() as made:
        parts, _ = check_parts(CheckSizes(), Path(made), rows, run_tests)
    unknown = rows.names - {name for part in parts for name in part.names}
    about = [*stored.get("about", []), *([f"{len(unknown)} rows are of no part, and not shown"] if unknown else [])]
    return Report(about, rows.made, all_tables(parts, rows, stored["gpu"]), rows.machine, stored["command"])


def read_rows(path: Path) -> dict[str, Any]:
    """What a call wrote. Raises BertsmithError for a file that is none of them."""
    stored = read_json(path)
    if not isinstance(stored, dict) or not {"rows", "machine", "command", "gpu"} <= stored.keys():
        raise BertsmithError("this file has no rows of make gpu-check", path, "name another one")
    return stored


def would_do(parts: Sequence[Part], rows: Rows, wanted: Sequence[str], total: float) -> list[str]:
    """What is measured where there is a GPU, in calls of `total` seconds, with the seconds and the figures that are
    expected; rows that are there are not. wanted: expressions, in whose order parts are measured."""
    lines = ["gpu-check: no CUDA device was found, so there is nothing to check here. It would measure, in this order,"]
    expected = rows.expected
    left: list[Part] = []
    for only, part in itertools.product(wanted, in_order(parts, rows)):
        listed = {name for each in left for name in each.names}
        names = [name for name in rows.missing(part.names) if re.search(only, name) and name not in listed]
        left += [replace(part, names=tuple(names))] if names else []
    for number, call in enumerate(calls_of(left, total)):
        seconds = sum(part.seconds for part in call)
        with_option = ' with ARGS="--go-on"' if number or rows.made else ""
        lines.append(f"in call {number + 1}{with_option}, expected to take {seconds:.0f} s:")
        for part in call:
            lines.append(f"  {part.seconds:.0f} s for")
            lines += [
                f"    {name}{f' (expected: {figures(expected[name])})' if name in expected else ''}"
                for name in part.names
            ]
            lines += [f"      {line}" for line in test_files()] if TESTS in part.names else []
    return lines


def figures(expected: Mapping[str, Any]) -> str:
    """Such as "215,655 real tokens/s on an H100, ..."."""
    return ", ".join(f"{expected[key]:{expected['as']}} {expected['what']} on an {name}" for key, name in CARDS.items())


def beside_expected(made: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each row that was counted before: where both differ much, the counts or the shares of
    `gpu_cost.py` are wrong."""
    shown = []
    for row in made:
        if "expected" in row:
            expected, measured = row["expected"], float(row[row["expected"]["figure"]])
            cells = [f"{value:{expected['as']}}" for value in (*(expected[key] for key in CARDS), measured)]
            ratios = [f"{measured / expected[key]:.2f}x" for key in CARDS]
            shown.append([row["case"], expected["what"], *cells, *ratios])
    head = ["", "figure", *(f"expected, {name}" for name in CARDS.values()), "measured"]
    return Table("Expected and measured", [*head, *(f"of {name}'s" for name in CARDS.values())], shown)


def keep_rows(rows: Rows) -> None:
    """Takes over the rows of the file. SystemExit for rows of another GPU or PyTorch."""
    if not rows.to.is_file():
        print(f"gpu-check: {rows.to} is not there, so all rows are measured")
        return
    stored = read_rows(rows.to)
    for name in ("gpu", "torch"):
        if stored.get(name) != rows.head[name]:
            raise SystemExit(
                f"{rows.to} has rows of {stored.get(name)}, not {rows.head[name]}: name another with --json"
            )
    take_rows(rows, stored)


def take_rows(rows: Rows, stored: Mapping[str, Any]) -> None:
    """Those of a stored file. A row of a file that has no calls is of the first; such a file may be of several."""
    earlier = stored.get("calls") or [{"command": stored.get("command"), "machine": stored.get("machine")}]
    rows.made = [{"call": 1} | row for row in stored["rows"]]
    rows.tried = {each["case"]: each["why"] for each in stored.get("failed", []) if each["why"] != NO_TIME}
    rows.tried |= {row["case"]: "tests failed" for row in rows.made if not is_right(row) and "ended" in row}
    rows.tried |= {row["case"]: row["note"] for row in rows.made if not is_whole(row)}
    rows.call = len(earlier) + 1
    rows.head["calls"] = [*earlier, *rows.head["calls"]]
    rows.head["part_seconds"] = stored.get("part_seconds", [])


def call_of(command: str) -> dict[str, str]:
    """What a call is known by: its command, and the code that it ran, which may be a copy without git."""
    texts = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")])
    sources = hashlib.sha256(b"".join(text.read_bytes() for text in texts)).hexdigest()
    return {"command": command, "commit": git_state(ROOT), "sources_sha256": sources}


def test_paths() -> list[Path]:
    """The files of tests in the order in which they run: what compiles for minutes takes no other its time."""
    found = [path for each in TEST_PATHS for path in sorted((ROOT / each).glob("test_*.py")) or [ROOT / each]]
    return sorted(found, key=lambda path: "compiled" in path.name)


def test_files() -> list[str]:
    """A line for each file of tests with what it says of itself, in the order in which they run."""
    docs = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in test_paths()}
    return [f"{path.relative_to(ROOT)}: {doc.splitlines()[0]}" for path, doc in docs.items()]


def keep_kernels() -> None:
    """Lets all processes of this call and of later ones share the kernels that compilers made, in a folder of the
    checkout. What the environment says goes first."""
    for name, folder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ.setdefault(name, str(ROOT / ".cache" / "gpu-check" / folder))


def run_tests(deadline: float) -> dict[str, Any]:
    """How the tests "ended" in their time, such as "passed", and lines about those that failed; what they print comes
    when they end. deadline: of time.monotonic()."""
    command = [sys.executable, "-m", "pytest", "-v", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    command += map(str, test_paths())
    left = deadline - time.monotonic()
    seconds = max(0.0, min(TEST_SECONDS, left))
    began, wide = time.monotonic(), os.environ | {"COLUMNS": "300"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        # A group of their own, so that nothing that they started goes on beside the measurements.
        with subprocess.Popen(
            command, cwd=ROOT, start_new_session=True, stdout=printed, stderr=subprocess.STDOUT, env=wide
        ) as process:
            try:
                ended = PASSED if process.wait(seconds) == 0 else "FAILED"
            except subprocess.TimeoutExpired:
                ended = f"NOT DONE after {seconds:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        printed.seek(0)
        lines = printed.read().splitlines()
    print("\n".join(lines))
    if ended.startswith("NOT DONE") and left < TEST_SECONDS:
        raise OutOfTime  # the next call has the time for them
    return {"ended": ended, "seconds": time.monotonic() - began, "failed": failing(lines, ended)}


def failing(lines: Sequence[str], ended: str) -> list[str]:
    """What pytest printed of tests that failed: its summary, or without one a line each and the one under way."""
    summary = [line for line in lines if re.match(r"(FAILED|ERROR) \S+\.py", line)]
    if ended == PASSED or summary:
        return summary
    tests = [line for line in lines if re.match(r"\S+\.py::", line)]
    return [line for line in tests if re.search(r" (FAILED|ERROR)\b", line)] + [
        line for line in tests[-1:] if not re.search(r" (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", line)
    ]


def file_name(gpu: str) -> str:
    """The GPU's name as a file may have it."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BertsmithError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        sys.exit(error.status)
