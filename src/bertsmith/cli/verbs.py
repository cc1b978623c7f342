"""All verbs, in the order in which text flows through them."""

from __future__ import annotations

from bertsmith.cli import bench, data, distill, quickstart, serve, train, use
from bertsmith.cli.verb import Verb

VERBS: dict[str, Verb] = {
    **quickstart.VERBS,
    **data.VERBS,
    **train.VERBS,
    **distill.VERBS,
    **use.VERBS,
    **serve.VERBS,
    **bench.VERBS,
}
