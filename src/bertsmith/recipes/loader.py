"""From a preset's name or a YAML file, and the user's flags, to a checked recipe; and back to YAML."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import yaml

from bertsmith.base import files, log
from bertsmith.base.errors import TOO_LARGE, BertsmithError, is_too_large, nearest, wanted
from bertsmith.recipes.flags import flag, leaves, named_by, split_flags, value_of
from bertsmith.recipes.ranges import validate
from bertsmith.recipes.schema import Recipe

_TYPES = dict(leaves(Recipe))
FIELDS = tuple(_TYPES)
"""The dotted names of all fields of a recipe: model.layers, phase1.steps, seed."""

_NOT_DECIMAL = re.compile(r"[-+]?0[0-9_bx].*")
BUDGET = "budget"
"""The preset whose model, batch, rate and steps `training.budget` chooses by the hours."""


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML that refuses a duplicate key, where plain YAML would silently use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            fault = "is not text" if not isinstance(key, str) else "is given twice" if key in seen else ""
            if fault:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} {fault}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def decimal(self, node: yaml.ScalarNode) -> int | float:
        """A number. YAML 1.1 has others than decimal ones: 010 is 8, and 1:30 is 90."""
        is_whole = node.tag.endswith(":int")
        if ":" in node.value or (is_whole and _NOT_DECIMAL.fullmatch(node.value)):
            fault = f"{node.value} is no decimal number, and YAML would read another one"
            raise yaml.constructor.ConstructorError(None, None, fault, node.start_mark)
        return self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)


for _tag in ("int", "float"):
    _UniqueKeys.add_constructor(f"tag:yaml.org,2002:{_tag}", _UniqueKeys.decimal)


def presets() -> dict[str, str]:
    """The recipes that come with Bertsmith: name and the first line of their file, which describes them."""
    found = {}
    for entry in sorted(_presets_folder().iterdir(), key=lambda each: each.name):
        if entry.name.endswith(".yaml"):
            first_line = entry.read_text(encoding="utf-8").split("\n", 1)[0]
            found[entry.name.removesuffix(".yaml")] = first_line.removeprefix("#").strip()
    return found


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = (), *, budget: bool = False) -> Recipe:
    """Reads a preset or a YAML file and applies the user's flags; both get the same type and range checks.

    name_or_path: a name that `presets()` lists, or a YAML file whose keys are the fields of `Recipe`; missing fields
    keep their defaults, which is logged. overrides: flags such as ["--phase1.steps", "100"]. budget: whether the preset
    of that name may be read, which `training.budget` completes.
    Raises BertsmithError for an unknown name or key (with the nearest one), a wrong value or a contradiction.
    """
    listed = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not listed or not all(isinstance(each, str) for each in overrides):
        fix = 'give a list of texts, such as ["--phase1.steps", "2"]'
        raise BertsmithError(f"overrides is {overrides!r:.80}", "overrides", fix)
    if str(name_or_path) == BUDGET and not budget:
        what = "this preset leaves model, batch and rate to the hours and the device of `bertsmith pretrain`"
        raise BertsmithError(what, BUDGET, "name another one, or give what training.budget.budget_recipe makes of it")
    where, text = _read(name_or_path)
    given = _flatten(_parse(text, where), where)
    flags, stray = split_flags(overrides, Recipe)
    for token in stray:
        raise BertsmithError(f"'{token}' is not a field of a recipe", token, _nearest_flag(token))
    origins = {name: f"{where}, {name}" for name in given} | {name: flag(name) for name in flags}
    recipe = _typed(given | flags, origins)
    validate(recipe, origins)
    for name, why in _without_effect(recipe, flags):
        log.log_choice(flag(name), "no effect", why)
    missing = [name for name in FIELDS if name not in given and name not in flags]
    if missing:
        values = [f"{name} {attrgetter(name)(recipe)}" for name in missing]
        log.say(f"recipe {where}: {log.counted(len(missing), 'field')} left out, at the default: {', '.join(values)}")
    return recipe


def recipe_of(given: Recipe | str | Path) -> Recipe:
    """A recipe made in Python, whose ranges are then checked; or the one of that name or file, as `load_recipe`."""
    if isinstance(given, Recipe):
        validate(given)
        return given
    if not isinstance(given, str | Path):
        raise BertsmithError(f"recipe is {given!r}", "recipe", "give a Recipe, a preset's name or a YAML file")
    return load_recipe(given)


def _without_effect(recipe: Recipe, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Those of the fields that the user gave which the recipe does not read, and why."""
    for phase in ("phase1", "phase2"):
        if not getattr(recipe, phase).steps:
            why = f"{phase}.steps is 0"
            yield from ((name, why) for name in given if name.startswith(f"{phase}.") and name != f"{phase}.steps")
    *others, last = (f"phase{number}.steps" for number in recipe.phases)
    if recipe.hours and not others and last in given:
        yield last, "hours end the only phase"
    if recipe.optimizer.name != "lamb" and "optimizer.trust_ratio" in given:
        yield "optimizer.trust_ratio", f"{recipe.optimizer.name} has none"
    taught = recipe.distillation
    if not taught.hidden and "distillation.layer_map" in given:
        yield "distillation.layer_map", "distillation.hidden is 0"
    if not taught.attention and not taught.values and "distillation.relation_heads" in given:
        yield "distillation.relation_heads", "distillation.attention and distillation.values are 0"


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Resolved settings in the format of `recipe.yaml`, in the given order."""
    return yaml.safe_dump(dict(settings), sort_keys=False)


def _presets_folder() -> resources.abc.Traversable:
    return resources.files("bertsmith.recipes") / "presets"


def _read(name_or_path: str | Path) -> tuple[str, str]:
    """(name for messages, text)."""
    known = presets()
    if str(name_or_path) in known:
        name = str(name_or_path)
        return f"preset {name}", (_presets_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    path = files.as_path(name_or_path, "recipe")
    if not path.is_file():
        inside = path / "recipe.yaml"  # as a run has it; that of a fine-tuning begins with its task
        with files.read_errors(inside):
            is_recipe = inside.is_file() and not inside.read_bytes().startswith(b"task:")
        hint = f"did you mean '{inside}'?" if is_recipe else nearest(str(name_or_path), known)
        fix = f"{hint}{'' if hint.endswith('?') else '.'} Or give the path of a YAML file"
        what = "this is a folder, and not a recipe" if path.is_dir() else "this is neither a preset nor a file"
        raise BertsmithError(what, str(name_or_path), fix)
    try:
        with files.read_errors(path):
            return str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BertsmithError("this recipe is not UTF-8 text", path, "save it as UTF-8") from error


def _parse(text: str, where: str) -> Mapping[str, Any]:
    try:
        values = yaml.load(text, Loader=_UniqueKeys)
    # Nested too deeply, a number of thousands of digits, or a value that is not what its tag says.
    except (RecursionError, ValueError, LookupError, TypeError, AttributeError) as error:
        fix = "write a recipe as docs/recipes.md has it"
        raise BertsmithError(f"this recipe cannot be read: {error}", where, fix) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        what = f"this recipe is not valid YAML: {getattr(error, 'problem', error)}"
        raise BertsmithError(what, where + line, "fix the YAML there") from error
    if not isinstance(values, dict) or not values:
        raise BertsmithError("this recipe has no keys", where, f"start with one of: {', '.join(_sections())}")
    return values


def _flatten(values: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, str]:
    """YAML in the form of flags: {"phase1.steps": "100"}."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = prefix + key
        if name in FIELDS:
            if value is None or isinstance(value, dict | list):
                what = f"{name} takes one value, but has {'none' if value is None else 'several'}"
                raise BertsmithError(what, f"{where}, {name}", f"write {key}: VALUE")
            # YAML reads a bare true as a boolean, also for a field in which it is one of several words.
            is_word = isinstance(value, bool) and "true" in get_args(_TYPES[name])
            flat[name] = str(value).lower() if is_word else str(value)
        elif any(field.startswith(name + ".") for field in FIELDS):
            if not isinstance(value, dict):
                inside = ", ".join(field.rsplit(".", 1)[1] for field in FIELDS if field.startswith(name + "."))
                raise BertsmithError(f"{name} is a section, not a value", f"{where}, {name}", f"use the keys: {inside}")
            flat |= _flatten(value, where, name + ".")
        else:
            fix = nearest(name, FIELDS) if prefix else nearest(name, {*_sections(), *FIELDS})
            raise BertsmithError(f"there is no key '{name}' in a recipe", f"{where}, {name}", fix)
    return flat


def _sections() -> list[str]:
    return list(dict.fromkeys(field.split(".", 1)[0] for field in FIELDS))


def _typed(given: Mapping[str, str], origins: Mapping[str, str]) -> Recipe:
    found = Recipe()
    sections: dict[str, dict[str, Any]] = {}
    for name, text in given.items():
        section, _, field = name.rpartition(".")
        try:
            value = value_of(_TYPES[name], text)
        except ValueError as error:
            raise BertsmithError(f"{name} is '{text}'", origins[name], f"use {wanted(_TYPES[name])}") from error
        if is_too_large(value):
            raise BertsmithError(f"{name} is '{text}'", origins[name], TOO_LARGE)
        sections.setdefault(section, {})[field] = value
    own = sections.pop("", {})
    changed = {section: dataclasses.replace(getattr(found, section), **fields) for section, fields in sections.items()}
    return dataclasses.replace(found, **own, **changed)


def _nearest_flag(token: str) -> str:
    name = named_by(token)
    if not name:
        return "write fields as --FIELD VALUE"
    return nearest(flag(name), [flag(field) for field in FIELDS])
