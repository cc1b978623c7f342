"""What `benchmarks.yaml` says of a benchmark, and its files in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Self

import yaml

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.files import as_path
from bertsmith.base.log import first_of

FILE = "benchmarks.yaml"
_PARTS = ("train", "dev", "dev_mismatched", "test", "test_mismatched")
_SHOWN = 12


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark; `benchmarks.yaml` says what each field means."""

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    layouts: tuple[Mapping[str, str], ...]
    metrics: tuple[str, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    part_columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unlabelled: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    hyper_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    submission: Mapping[str, str] = field(default_factory=dict)
    clip: tuple[float, ...] = ()
    folds: int = 0
    trained_as: str | None = None

    @classmethod
    def from_values(cls, name: str, values: Any) -> Self:
        """A benchmark of its values in YAML. ValueError says which key is unknown, missing or of the wrong kind."""
        if not isinstance(values, dict):
            raise ValueError(f"{name} is {values!r}, not a section")
        known = {each.name: each for each in fields(cls) if each.name != "name"}
        for key in values:
            if key not in known:
                raise ValueError(f"{name} has no key '{key}'; {nearest(str(key), known)}")
        needed = {key for key, each in known.items() if each.default is MISSING and each.default_factory is MISSING}
        if needed - values.keys():
            raise ValueError(f"{name} lacks {', '.join(sorted(needed - values.keys()))}")
        for key, value in values.items():
            wanted = str(known[key].type)
            kind = next(kind for start, kind in _KINDS.items() if wanted.startswith(start))
            if type(value) is not kind:
                raise ValueError(f"{name}: {key} is {value!r}; a {kind.__name__} is wanted")
        lists: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        found = cls(name, **lists)
        found._check_parts()
        return found

    def _check_parts(self) -> None:
        """ValueError for a part that is not one, or that no layout has."""
        for layout in self.layouts:
            wrong = layout.keys() - set(_PARTS)
            if wrong:
                raise ValueError(f"{self.name}: there is no part '{min(wrong)}'; {nearest(min(wrong), _PARTS)}")
        for key in ("part_columns", "unlabelled", "rows", "submission"):
            wrong = set(getattr(self, key)) - set(self.parts)
            if wrong:
                raise ValueError(f"{self.name}: {key} names '{min(wrong)}', which no layout has")

    @property
    def parts(self) -> tuple[str, ...]:
        """Those that any layout has, train first."""
        return tuple(part for part in _PARTS if any(part in layout for layout in self.layouts))

    @property
    def labelled(self) -> tuple[str, ...]:
        """The parts that have labels."""
        return tuple(part for part in self.parts if part not in self.unlabelled)

    def columns_of(self, part: str) -> dict[str, Any]:
        """Where the parts of a row stand in the files of a part."""
        return {**self.columns, **self.part_columns.get(part, {})}

    def hyper_parameters_of(self, source: str | None = None) -> tuple[str, dict[str, Any]]:
        """(source, values) of the hyper-parameters by a source; None takes the first. Raises BertsmithError."""
        if not self.hyper_parameters:
            fix = f"fine-tune {self.trained_as} and evaluate its run" if self.trained_as else "name another benchmark"
            raise BertsmithError(f"{self.name} has no rows to train on", "task", fix)
        source = source or next(iter(self.hyper_parameters))
        if source not in self.hyper_parameters:
            what = f"'{source}' has no hyper-parameters for {self.name}"
            raise BertsmithError(what, "--hyper-parameters", f"use {' or '.join(self.hyper_parameters)}")
        return source, dict(self.hyper_parameters[source])

    def find(self, data: str | Path, wanted: Sequence[str], fold: int = 0) -> dict[str, Path]:
        """The files of the parts that a folder has, those of `wanted` among them.

        A file is looked for in the benchmark's folders below `data` and then in `data` itself. Of the places and
        layouts that have all wanted parts, the first of those with most parts is taken. Raises BertsmithError that
        lists what was looked for and what was found.
        """
        data = as_path(data, "data")
        if not data.is_dir():
            raise BertsmithError("this is not a folder", data, f"name the folder with the files of {self.name}")
        if not 0 <= fold < max(self.folds, 1):
            fix = f"use 0 to {self.folds - 1}" if self.folds else f"{self.name} has no folds: leave it out"
            raise BertsmithError(f"there is no fold {fold} of {self.name}", "--fold", fix)
        places = [*(each.format(fold=fold) for each in self.folders), "."]
        best: dict[str, Path] = {}
        for place in places:
            for layout in self.layouts:
                there = {part: data / place / name for part, name in layout.items() if (data / place / name).is_file()}
                if there.keys() >= set(wanted) and len(there) > len(best):
                    best = there
        if not best:
            raise self._not_found(data, places, wanted)
        return best

    def found(self, data: str | Path, wanted: Sequence[str], fold: int = 0) -> dict[str, Path]:
        """As `find`; {} where files of `wanted` are missing, or all are."""
        try:
            return self.find(data, wanted, fold)
        except BertsmithError:
            return {}

    def _not_found(self, data: Path, places: Sequence[str], wanted: Sequence[str]) -> BertsmithError:
        wanted = wanted or self.labelled
        ways = " or ".join(", ".join(layout[part] for part in wanted if part in layout) for layout in self.layouts)
        names = {name for layout in self.layouts for name in layout.values()}
        seen = sorted({f"{place}/{name}" for place in places for name in names if (data / place / name).is_file()})
        lines = [f"{self.name} needs {ways}", f"looked in {', '.join(places)}"]
        lines.append(f"of its files there is {', '.join(seen)}" if seen else "none of its files is there")
        inside = sorted(each.name + "/" * each.is_dir() for each in data.iterdir())
        lines.append(f"the folder holds {first_of(inside, _SHOWN) or 'nothing'}")
        what = f"the files of {self.name} ({' and '.join(wanted)}) are not in this folder:\n    " + "\n    ".join(lines)
        return BertsmithError(what, data, "name the folder that holds them with --data")


# Of YAML, by how the type of a field begins.
_KINDS: dict[str, type] = {"str": str, "tuple": list, "Mapping": dict, "int": int}


@lru_cache(maxsize=1)
def benchmarks() -> Mapping[str, Benchmark]:
    """All of them by their names, in the order of the file."""
    text = resources.files("bertsmith.tasks.benchmarks").joinpath(FILE).read_text(encoding="utf-8")
    return parse(text)


def parse(text: str) -> dict[str, Benchmark]:
    """The benchmarks of a YAML text. ValueError for what a benchmark cannot say."""
    # By the parser in C where PyYAML has it: of all benchmarks the other one takes a sixteenth of a second.
    values = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    found = {str(name): Benchmark.from_values(str(name), each) for name, each in values.items()}
    for each in found.values():
        if each.trained_as is not None and each.trained_as not in found:
            raise ValueError(f"{each.name}: trained_as is '{each.trained_as}'; {nearest(each.trained_as, found)}")
    return found
