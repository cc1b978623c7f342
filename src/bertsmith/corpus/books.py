"""What a preparation read, kept, dropped and changed, as corpus.json keeps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.corpus.account import Account, Tally
from bertsmith.corpus.shards import CORPUS_FORMAT, SPLITS, ShardInfo, shard_account
from bertsmith.corpus.tokenizer import Tokenizer


def corpus_account(
    made_of: Mapping[str, Any],
    account: Account,
    results: Sequence[Mapping[str, Any]],
    shards: Mapping[str, Sequence[ShardInfo]],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """All that corpus.json holds. results: of the tokenised parts, in order; their tallies are added to `account`."""
    for result in results:
        account.dropped.add(Tally.from_json(result["dropped"]))
        account.changed.add(Tally.from_json(result["changed"]))
    splits = {split: _split_account([result["splits"][split] for result in results], shards[split]) for split in SPLITS}
    kept = {name: sum(splits[split][name] for split in SPLITS) for name in ("documents", "bytes")}
    assert kept["documents"] + account.dropped.count == account.documents
    assert kept["bytes"] + account.dropped.bytes == account.bytes
    return {
        "format": CORPUS_FORMAT,
        "made_of": dict(made_of),
        "tokenizer": {
            "sha256": tokenizer.sha256,
            "lowercase": tokenizer.lowercase,
            "special": dataclasses.asdict(tokenizer.special),
        },
        "counts": {
            "source_bytes": account.stream_bytes,
            "read": {"documents": account.documents, "bytes": account.bytes},
            "kept": kept,
            "dropped": account.dropped.to_json(),
            "changed": account.changed.to_json(),
        },
        "splits": splits,
    }


def _split_account(figures: Sequence[Mapping[str, Any]], shards: Sequence[ShardInfo]) -> dict[str, Any]:
    values = shard_account(shards)
    summed = {name: sum(figure[name] for figure in figures) for name in ("bytes", "unknown", "words")}
    for name in ("documents", "sentences", "tokens"):
        assert values[name] == sum(figure[name] for figure in figures)
    histogram = [sum(column) for column in zip(*(figure["histogram"] for figure in figures), strict=True)]
    while histogram and not histogram[-1]:
        histogram.pop()
    longest = max((figure["longest"] for figure in figures), key=lambda pair: pair[0])
    shards_listed = values.pop("shards")
    return values | summed | {"histogram": histogram, "longest": longest, "shards": shards_listed}
