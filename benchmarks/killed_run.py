"""A pre-training run that is killed and resumed beside the unbroken one of the same command (Linux).

    python benchmarks/killed_run.py bert-mini --corpus corpus --runs runs/killed --steps 240 40 --kills 60 150 250 \\
        --out killed.json --save_every 25

Both are started as a user starts them. Launcher, ranks and their helpers get SIGKILL once the metrics tell of each of
the steps, at a random moment within `--within` seconds, and the same command resumes. Further flags are those of
`bertsmith pretrain`. All records of metrics, the weights and the last checkpoint are compared to the bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.tables import aligned
from bertsmith.bench.machine import machine
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.run_folder import Run

MARK = "BERTSMITH_KILLED_RUN"
# What a record says about the clock and the memory of the machine, which no two runs share.
OF_THE_CLOCK = {"tokens_per_second", "seconds_per_step", "flop_per_second", "peak_share", "data_wait_share"}
OF_THE_CLOCK |= {"memory_bytes", "seconds_left_in_phase"}


def started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """The process of a command. What it says is added to the log."""
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, MARK: str(log)})


def finished(process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for the end of a run."""
    if process.wait():
        sys.exit(f"a run ended with status {process.returncode}: see {log}")


def killed(process: subprocess.Popen[bytes], run: Run, step: int, delay: float, log: Path) -> dict[str, Any]:
    """Kills all processes of a run so long after its metrics tell of a step, and says how far it was."""
    while not any(record["step"] >= step for record in run.metrics("train")):
        if process.poll() is not None:
            sys.exit(f"the run ended with status {process.returncode} before step {step}: see {log}")
        time.sleep(0.1)
    time.sleep(delay)
    if process.poll() is not None:
        sys.exit(f"the run ended before it was killed after step {step}: take more steps, or a smaller --within")
    count, marked = 0, f"{MARK}={log}".encode()
    while found := [each for each in Path("/proc").iterdir() if each.name.isdigit() and _has(each, marked)]:
        for each in found:
            with suppress(ProcessLookupError):
                os.kill(int(each.name), signal.SIGKILL)
                count += 1
        process.poll()
    process.wait()
    last = max(record["step"] for record in run.metrics())
    folders = step_folders(run.folder)
    resumes = int(folders[-1].name.partition("-")[2]) if folders else 0
    return {"after": step, "delay_seconds": delay, "last_line": last, "resumes_from": resumes, "signals": count}


def _has(process: Path, marked: bytes) -> bool:
    """Whether a process, given by its folder in /proc, lives and has this in its environment."""
    try:
        return marked in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def records_of(run: Run) -> list[dict[str, Any]]:
    """Its metrics without what the clock says."""
    return [{name: value for name, value in each.items() if name not in OF_THE_CLOCK} for each in run.metrics()]


def hashes(run: Run) -> dict[str, str]:
    """SHA-256 of the finished weights and of the last checkpoint, moments included."""
    found = {"weights": run.model / "model.safetensors"}
    found["checkpoint"] = step_folders(run.folder)[-1] / "training-state.safetensors"
    return {name: files.sha256(path) for name, path in found.items()}


def differences(one: Run, other: Run) -> dict[str, Any]:
    """What is not the same in two finished runs."""
    pairs = list(zip_longest(records_of(one), records_of(other)))
    ours, theirs = hashes(one), hashes(other)
    return {
        "records": len(pairs),
        "unequal_records": sum(ours != theirs for ours, theirs in pairs),
        "unequal_files": [name for name in ours if ours[name] != theirs[name]],
    }


def compared(command: list[str], runs: Path, kills: list[int], delays: list[float]) -> dict[str, Any]:
    """Both runs, and where they differ."""
    unbroken, broken = Run(runs / "unbroken"), Run(runs / "killed")
    runs.mkdir(parents=True)
    start = time.monotonic()
    finished(started([*command, "--out", str(unbroken.folder)], runs / "unbroken.log"), runs / "unbroken.log")
    seconds = time.monotonic() - start
    log, again = runs / "killed.log", [*command, "--out", str(broken.folder), "--resume"]
    found = [killed(started(again, log), broken, step, delay, log) for step, delay in zip(kills, delays, strict=True)]
    finished(started(again, log), log)
    wait = [record["data_wait_share"] for record in unbroken.metrics("train")]
    return {
        "seconds_unbroken": round(seconds, 1),
        "kills": found,
        **differences(broken, unbroken),
        "data_wait": {"mean": sum(wait) / len(wait), "most": max(wait)},
    }


def table(found: dict[str, Any]) -> str:
    """For a terminal."""
    lines = [["killed after the line of step", "seconds later", "last line", "resumes from step"]]
    for each in found["kills"]:
        cells = (each["after"], f"{each['delay_seconds']:.1f}", each["last_line"], each["resumes_from"])
        lines.append([str(cell) for cell in cells])
    unequal = ", ".join(found["unequal_files"]) or "none"
    wait = found["data_wait"]
    return "\n".join(
        [
            *aligned(lines),
            f"the unbroken run took {found['seconds_unbroken'] / 60:.1f} minutes",
            f"records of metrics: {found['records']}, of which {found['unequal_records']} differ",
            f"files that differ, of the weights and the last checkpoint: {unequal}",
            f"waiting for data: {wait['mean']:.2%} of the time, at most {wait['most']:.2%} between two lines",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    for name in ("corpus", "runs", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, nargs=2, required=True, help="of both phases")
    parser.add_argument("--kills", type=int, nargs="+", required=True, help="steps, rising")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--within", type=float, default=8.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    given, fields = parser.parse_known_args()
    if given.runs.exists():
        sys.exit(f"{given.runs} is there already: these are new runs")
    draw = random.Random(given.seed)
    delays = [round(draw.random() * given.within, 3) for _ in given.kills]
    fields += [f"--phase{number}.steps={steps}" for number, steps in enumerate(given.steps, start=1)]
    command = [sys.executable, "-m", "bertsmith", "pretrain", given.recipe, "--corpus", str(given.corpus)]
    before = machine()
    found = compared([*command, "--ranks", str(given.ranks), *fields], given.runs, given.kills, delays)
    files.write_json(given.out, {"arguments": sys.argv[1:], "machine": before, **found})
    print(table(found))
    sys.exit(bool(found["unequal_records"] or found["unequal_files"]))


if __name__ == "__main__":
    main()
