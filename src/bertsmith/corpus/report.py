"""What a preparation read, kept, dropped and changed: kept in corpus.json, and shown by `bertsmith inspect`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.base.log import size
from bertsmith.corpus.account import Account, Tally
from bertsmith.corpus.shards import CORPUS_FORMAT, SPLITS, Corpus, ShardInfo, shard_account
from bertsmith.corpus.tokenizer import Tokenizer

_SAMPLES = 3
_SAMPLE_SENTENCES = 3
_SAMPLE_PIECES = 60
_BAR = 40


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


def inspect(corpus: Corpus) -> str:
    """The account of a corpus as text: what became of every document and byte, lengths, and sample rows."""
    lines = [f"corpus {corpus.folder}", *_origin(corpus), "", *_books(corpus), "", *_figures(corpus)]
    for split in SPLITS:
        if corpus.documents(split):
            lines += ["", *_histogram(corpus, split)]
    return "\n".join([*lines, "", *_samples(corpus)])


def _origin(corpus: Corpus) -> list[str]:
    made_of, tokenizer = corpus.account["made_of"], corpus.account["tokenizer"]
    casing = "lower-cased" if tokenizer["lowercase"] else "cased"
    origin = "trained on it" if made_of["tokenizer"] == "trained" else "given"
    pieces = corpus.special.vocabulary_size
    return [
        f"  made of    {', '.join(made_of['sources'])} ({made_of['files']['count']:,} file(s))",
        f"  tokenizer  {pieces:,} pieces, {casing}, {origin}, sha256 {tokenizer['sha256'][:12]}",
    ]


def _books(corpus: Corpus) -> list[str]:
    counts = corpus.counts
    read, kept, dropped = counts["read"], counts["kept"], Tally.from_json(counts["dropped"])
    around = counts["source_bytes"] - read["bytes"]
    lines = [
        "documents                                                    count           bytes",
        _row("read", read["documents"], read["bytes"]),
        _row("= kept", kept["documents"], kept["bytes"]),
    ]
    for what, entry in dropped.items():
        lines.append(_row(f"+ dropped: {what}", entry.count, entry.bytes))
        lines += [f"      such as {example}" for example in entry.examples]
    lines += ["", f"the sources hold {counts['source_bytes']:,} bytes unpacked, {around:,} of them around the texts"]
    for what, entry in Tally.from_json(counts["changed"]).items():
        examples = f"; such as {', '.join(entry.examples)}" if entry.examples else ""
        lines.append(f"  {entry.count:,} {what}{examples}")
    return lines


def _row(what: str, count: int, size_bytes: int) -> str:
    return f"  {what:<52} {count:>11,} {size_bytes:>15,}"


def _figures(corpus: Corpus) -> list[str]:
    rows = [f"  {'':<38} {'train':>15} {'held out':>15}"]
    splits = [corpus.account["splits"][split] for split in SPLITS]

    def row(what: str, *values: str) -> None:
        rows.append(f"  {what:<38} {values[0]:>15} {values[1]:>15}")

    for name in ("documents", "sentences", "tokens"):
        row(name, *(f"{split[name]:,}" for split in splits))
    row("shards", *(f"{len(split['shards']):,}" for split in splits))
    row("longest document, tokens", *(f"{split['longest'][0]:,}" for split in splits))
    row("tokens a document", *(_ratio(split["tokens"], split["documents"], ".1f") for split in splits))
    row("tokens a sentence", *(_ratio(split["tokens"], split["sentences"], ".1f") for split in splits))
    row("pieces a word (punctuation counted)", *(_ratio(split["tokens"], split["words"], ".3f") for split in splits))
    row("share of [UNK]", *(_ratio(split["unknown"], split["tokens"], ".3%") for split in splits))
    disk = (corpus.folder / "train").glob("*.npy")
    stored = sum(path.stat().st_size for path in disk)
    rows.append(f"  train shards take {size(stored)}, {_ratio(stored, corpus.tokens('train'), '.3f')} bytes a token")
    rows.append(f"  the longest document is {splits[0]['longest'][1]}")
    return rows


def _ratio(count: int, of: int, form: str) -> str:
    return format(count / of, form) if of else "-"


def _histogram(corpus: Corpus, split: str) -> list[str]:
    counts = corpus.account["splits"][split]["histogram"]
    most = max(counts)
    lines = [f"{split.replace('_', ' ')}: documents by tokens"]
    first = next(place for place, count in enumerate(counts) if count)
    for place in range(first, len(counts)):
        low, high = 1 << (place - 1), (1 << place) - 1
        bar = "#" * -(-counts[place] * _BAR // most)
        lines.append(f"  {low:>10,} to {high:<10,} {counts[place]:>11,} {bar}")
    return lines


def _samples(corpus: Corpus) -> list[str]:
    """The beginnings of a few documents, decoded from the shards, a sentence a line."""
    tokenizer = corpus.tokenizer()
    lines = ["sample documents, as pieces read back (a sentence a line)"]
    split = "train" if corpus.documents("train") else "held_out"
    count = len(corpus.shards(split))
    for number in sorted({index * count // _SAMPLES for index in range(_SAMPLES)}):
        shard = corpus.open_shard(split, number)
        document = (len(shard.document_offsets) - 1) // 2
        first, last = (int(edge) for edge in shard.document_offsets[document : document + 2])
        lines.append(f"  {split} shard {number}, document {document}, {last - first:,} sentences")
        for sentence in range(first, min(last, first + _SAMPLE_SENTENCES)):
            ids = shard.tokens[shard.sentence_offsets[sentence] : shard.sentence_offsets[sentence + 1]]
            more = f" ... ({len(ids):,} pieces)" if len(ids) > _SAMPLE_PIECES else ""
            lines.append(f"    {tokenizer.decode(ids[:_SAMPLE_PIECES])}{more}")
    return lines
