"""All verbs, in the order in which text flows through them."""

from __future__ import annotations

from bertsmith.cli import bench, data, distill, export, plan, quickstart, report, serve, train, use
from bertsmith.cli.verb import Verb

_GROUPS = (quickstart, data, plan, train, distill, report, use, export, serve, bench)
VERBS: dict[str, Verb] = {name: verb for group in _GROUPS for name, verb in group.VERBS.items()}
