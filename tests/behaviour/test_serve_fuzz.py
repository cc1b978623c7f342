"""schemathesis asks a server whatever its own OpenAPI allows, and much that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi import checks

from made_served import Served, serving

# What it holds of every answer: no 5xx, a status, a type and a shape that the OpenAPI has.
CHECKS = (
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)
NAMES = ("labels", "ranks", "answers", "tags", "vectors", "masks", "choices")


@pytest.fixture(scope="module")
def served(served_models: dict[str, Path]) -> Iterator[Served]:
    with serving({name: served_models[name] for name in NAMES}, "--precision", "fp32") as server:
        yield server


def fuzz(served: Served, examples: int) -> set[int]:
    """Asks each route so many times, by the names of all models; gives the statuses that came."""
    raw = served.ask("/openapi.json")[1]
    seen: set[int] = set()
    for path, method in ((path, method) for path, methods in raw["paths"].items() for method in methods):
        for each in raw["paths"][path][method].get("parameters", []):
            each["schema"] = {"enum": [*NAMES, "nobody"]}
    schema = schemathesis.openapi.from_dict(raw)
    schema.config.update(base_url=served.address)
    health = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
    settings = hypothesis.settings(
        max_examples=examples, suppress_health_check=health, deadline=None, database=None, derandomize=True
    )
    for result in schema.get_all_operations():
        operation = result.ok()
        modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
        for mode in modes if operation.body or operation.path_parameters else modes[:1]:

            @settings
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                answer = case.call()
                seen.add(answer.status_code)
                case.validate_response(answer, checks=list(CHECKS))

            ask()
    assert served.process.poll() is None
    assert served.ask("/health")[0] == 200
    return seen


def test_whatever_is_asked_gets_an_answer_that_the_openapi_has(served: Served) -> None:
    assert {200, 404, 422, 424} <= fuzz(served, 4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_is_asked_at_length_gets_an_answer_that_the_openapi_has(served: Served) -> None:
    assert {200, 404, 422, 424} <= fuzz(served, 150)
