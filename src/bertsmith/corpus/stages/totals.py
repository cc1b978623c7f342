"""The accounting of a whole preparation, out of the accounts that parts keep: what it read, kept, dropped and changed.

A part's account stays in its folder and is read when the accounts are added up, one at a time and in source order: the
memory of the leading process does not grow with the examples of all parts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bertsmith.base.tally import Tally
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.shards import CORPUS_FORMAT, SPLITS, ShardInfo
from bertsmith.tokens.tokenizer import Tokenizer

_FILE = "account.json"
_SUMMED = ("documents", "sentences", "tokens", "bytes", "unknown", "words")


def keep_account(folder: Path, account: Mapping[str, Any]) -> None:
    """Writes a part's account into its folder, for `kept_accounts`."""
    (folder / _FILE).write_text(json.dumps(account, ensure_ascii=False), encoding="utf-8", errors="surrogatepass")


def kept_accounts(folders: Iterable[Path]) -> Iterable[dict[str, Any]]:
    """The accounts of parts, one after the other."""
    for folder in folders:
        yield json.loads((folder / _FILE).read_text(encoding="utf-8", errors="surrogatepass"))


def corpus_account(
    made_of: Mapping[str, Any],
    account: Account,
    tokenised: Iterable[Mapping[str, Any]],
    shards: Mapping[str, Sequence[ShardInfo]],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """All that corpus.json holds. tokenised: accounts of the parts, in order; their tallies go into `account`."""
    figures = {split: _Figures() for split in SPLITS}
    for part in tokenised:
        account.dropped.add(Tally.from_json(part["dropped"]))
        account.changed.add(Tally.from_json(part["changed"]))
        for split in SPLITS:
            figures[split].add(part["splits"][split])
    splits = {split: figures[split].account(shards[split]) for split in SPLITS}
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


@dataclasses.dataclass
class _Figures:
    """A split's figures, added up over its parts."""

    sums: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(_SUMMED, 0))
    histogram: list[int] = dataclasses.field(default_factory=list)
    longest: tuple[int, str] = (0, "")

    def add(self, part: Mapping[str, Any]) -> None:
        for name in _SUMMED:
            self.sums[name] += part[name]
        self.histogram = [a + b for a, b in zip_longest(self.histogram, part["histogram"], fillvalue=0)]
        if part["longest"][0] > self.longest[0]:
            self.longest = part["longest"]

    def account(self, shards: Sequence[ShardInfo]) -> dict[str, Any]:
        """As corpus.json lists it."""
        for name in ("documents", "sentences", "tokens"):
            assert sum(getattr(shard, name) for shard in shards) == self.sums[name]
        places = max((place + 1 for place, count in enumerate(self.histogram) if count), default=0)
        described = {"histogram": self.histogram[:places], "longest": self.longest}
        return {**self.sums, **described, "shards": [dataclasses.asdict(shard) for shard in shards]}
