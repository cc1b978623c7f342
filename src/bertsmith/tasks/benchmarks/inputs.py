"""What a benchmark's name and a folder give a fine-tuning run: the kind of task, the files, and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError, TypeChecked, nearest
from bertsmith.base.log import say, warn
from bertsmith.tasks.benchmarks.benchmark import Benchmark, benchmarks
from bertsmith.tasks.reading.records import Columns, Source
from bertsmith.tasks.settings import DistillSettings, FinetuneSettings

# Parts by the names that a run has for them, which the names of their figures begin with.
_SHORT = {"dev_mismatched": "mismatched"}
# Settings that leave a score comparable with published ones.
_FREE = (
    *("device", "precision", "micro_batch_tokens", "log_every", "save_every", "keep", "keep_every", "nvidia_results"),
    *("seeds", "seed", "keep_seed", "side_by_side", "folds", "learning_curve", "report", "temperature"),
    *("skip_bad_rows", "bad_share"),
)


@dataclass(frozen=True)
class BenchmarkChoice(TypeChecked):
    """Which rules of a benchmark a run takes. data: the folder with its files. hyper_parameters: whose, such as
    "google" or "nvidia"; None for the first source that the benchmark has. fold: of published folds."""

    data: str | Path | None
    hyper_parameters: str | None = None
    fold: int = 0


@dataclass(frozen=True)
class RunInputs:
    """kind: of the task. sources: the rows of train and dev, and of further labelled parts that are only measured.
    benchmark: its name, if it is one."""

    kind: str
    sources: dict[str, Source]
    settings: FinetuneSettings
    benchmark: str | None = None


def benchmark_settings(name: str, hyper_parameters: str | None = None, **changes: Any) -> FinetuneSettings:
    """The settings that a benchmark is fine-tuned with. hyper_parameters: as of `BenchmarkChoice`. changes: settings
    to use in their place.

    Raises BertsmithError for a name that is not a benchmark's, for one without rows to train on, and for a source that
    it does not have.
    """
    benchmark = benchmark_named(name)
    _, values = benchmark.hyper_parameters_of(hyper_parameters)
    labels = {"labels": ",".join(benchmark.labels)} if benchmark.labels else {}
    rules = {"metric": benchmark.metrics[0], **labels, **benchmark.settings}
    columns = Columns(**benchmark.columns_of("train"))
    return FinetuneSettings(**{**rules, **values, "columns": columns, **changes})


def distill_settings(task: str) -> DistillSettings:
    """The usual settings of a task, those of a benchmark where it is one's name."""
    if task not in benchmarks():
        return DistillSettings()
    own = benchmark_settings(task)
    return DistillSettings(**{each.name: getattr(own, each.name) for each in fields(FinetuneSettings)})


def run_inputs(
    task: str, taken: BenchmarkChoice, given: Mapping[str, Source], settings: FinetuneSettings | None = None
) -> RunInputs:
    """What a run is started with, by the name of a kind of task or of a benchmark; see `benchmark_inputs`."""
    if task in benchmarks() or taken != BenchmarkChoice(None):
        return benchmark_inputs(task, taken, given, settings)
    if "train" not in given:
        fix = "name a file of rows with --train, or a benchmark and its folder with --data"
        raise BertsmithError("there are no rows to train on", task, fix)
    return RunInputs(task, dict(given), settings or FinetuneSettings())


def benchmark_inputs(
    name: str, taken: BenchmarkChoice, given: Mapping[str, Source], settings: FinetuneSettings | None = None
) -> RunInputs:
    """The files of a benchmark in a folder, and the settings to fine-tune with, which are logged.

    given: rows of train, and perhaps of dev and test, where there is no folder: the benchmark's rules on other rows.
    settings: in place of the benchmark's; where they change its rules or hyper-parameters that is warned of, as the
    score is then not comparable. Raises BertsmithError where files are missing.
    """
    benchmark = benchmark_named(name)
    source, values = benchmark.hyper_parameters_of(taken.hyper_parameters)
    own = benchmark_settings(name, source)
    settings = settings or own
    _tell(benchmark, source, values)
    _tell_changes(benchmark, own, settings)
    return RunInputs(benchmark.kind, _sources(benchmark, taken, given), settings, name)


def _sources(benchmark: Benchmark, taken: BenchmarkChoice, given: Mapping[str, Source]) -> dict[str, Source]:
    name = benchmark.name
    if taken.data is not None and given:
        what = f"the folder of {name} and files of {' and '.join(given)} rows exclude each other"
        raise BertsmithError(what, "data", "give one of them")
    if taken.data is None:
        if "train" not in given:
            raise BertsmithError(f"the files of {name} are not named", "data", "give their folder with --data")
        return dict(given)
    found = benchmark.find(taken.data, ("train", "dev"), taken.fold)
    say(f"{name}: " + ", ".join(f"{part} {path}" for part, path in found.items()))
    for part in (each for each in benchmark.labelled if each not in found and each != "test"):
        warn(f"{name}: the files of {part} are not there, so nothing is measured on them", of_all_ranks=True)
    return {_SHORT.get(part, part): path for part, path in found.items() if part in benchmark.labelled}


def benchmark_named(name: str) -> Benchmark:
    """Raises BertsmithError, with the nearest name, for one that is not known."""
    if name not in benchmarks():
        what = f"'{name}' is not a benchmark, so it has neither files in a folder nor hyper-parameters"
        hint = nearest(name, benchmarks())
        fix = f"{hint}{'' if hint.endswith('?') else '.'} Or give files of rows with --train and --dev"
        raise BertsmithError(what, "task", fix)
    return benchmarks()[name]


def figure_prefix(part: str) -> str:
    """What stands before the names of a part's figures: "" for dev, "test_", "mismatched_"."""
    return "" if part == "dev" else f"{_SHORT.get(part, part)}_"


def tell_rows(name: str, rows: Mapping[str, int]) -> None:
    """Warns of parts that have other numbers of rows than the published benchmark. rows: of each part."""
    for part, expected in benchmarks()[name].rows.items():
        found = rows.get(part, rows.get(_SHORT.get(part, part)))
        if found is not None and found != expected:
            counts = f"{part} has {found:,} rows and the published one {expected:,}"
            warn(f"{name}: {counts}, so scores are not comparable with published ones", of_all_ranks=True)


def _tell(benchmark: Benchmark, source: str, values: Mapping[str, Any]) -> None:
    others = [each for each in benchmark.hyper_parameters if each != source]
    more = f" (or --hyper-parameters {' or '.join(others)})" if others else ""
    shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
    say(f"{benchmark.name}: {benchmark.title}; hyper-parameters of {source}: {shown}{more}")


def _tell_changes(benchmark: Benchmark, own: FinetuneSettings, given: FinetuneSettings) -> None:
    before, after = asdict(own), asdict(given)
    changed = [
        name if name == "columns" else f"{name} {after[name]} (not {before[name]})"
        for name in before  # those of a teacher are none of the benchmark's
        if name not in _FREE and before[name] != after[name]
    ]
    if changed:
        said = f"{benchmark.name} with {', '.join(changed)}: the score is not comparable with published ones"
        warn(said, of_all_ranks=True)
