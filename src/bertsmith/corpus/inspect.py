"""What `bertsmith inspect` shows of a corpus: what became of every document and byte, lengths, and how texts read."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from bertsmith.base.log import counted, size
from bertsmith.base.tables import aligned
from bertsmith.base.tally import Entry, Tally
from bertsmith.corpus.filters.near_duplicates import LEADERS, PERMUTATIONS
from bertsmith.corpus.histogram import length_bars
from bertsmith.corpus.reading import grown_by
from bertsmith.corpus.shards import SPLITS, Corpus, Shard
from bertsmith.tokens.tokenizer import Tokenizer

_SAMPLES = 3
_SAMPLE_SENTENCES = 3
_SAMPLE_PIECES = 60
_COLUMNS = 116
_SLOW_PAGES = 20


def inspect(corpus: Corpus) -> str:
    """The account of a corpus as text."""
    blocks = [[f"corpus {corpus.folder}", *_origin(corpus)], _documents(corpus), _changes(corpus), _searches(corpus)]
    blocks.append(_figures(corpus))
    blocks += [length_bars(corpus, split) for split in SPLITS if corpus.documents(split)]
    blocks.append(_samples(corpus))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _origin(corpus: Corpus) -> list[str]:
    made_of, tokenizer = corpus.account["made_of"], corpus.account["tokenizer"]
    casing = "lower-cased" if tokenizer["lowercase"] else "cased"
    origin = "trained on it" if made_of["tokenizer"] == "trained" else "given"
    pieces = corpus.special.vocabulary_size
    lines = [
        f"  made of    {', '.join(made_of['sources'])} ({counted(made_of['files']['count'], 'file')})",
        f"  tokenizer  {pieces:,} pieces, {casing}, {origin}, sha256 {tokenizer['sha256'][:12]}",
    ]
    if corpus.doubt:
        pages = corpus.account["given_up"]["pages"]
        more = [f"      and {len(pages) - _SLOW_PAGES:,} more, in corpus.json"] if len(pages) > _SLOW_PAGES else []
        lines += [f"  {corpus.doubt}:", *(f"      {page}" for page in pages[:_SLOW_PAGES]), *more]
    return lines


def _documents(corpus: Corpus) -> list[str]:
    counts = corpus.counts
    read, kept, dropped = counts["read"], counts["kept"], Tally.from_json(counts["dropped"])
    around = counts["source_bytes"] - read["bytes"] + grown_by(Tally.from_json(counts["changed"]))
    entries = [
        ("  read", Entry(read["documents"], read["bytes"])),
        ("  = kept", Entry(kept["documents"], kept["bytes"])),
    ]
    entries += [(f"  + dropped: {what}", entry) for what, entry in dropped.items()]
    rows = [("documents", "count", "bytes"), *((what, f"{each.count:,}", f"{each.bytes:,}") for what, each in entries)]
    head, *lines = aligned(rows)
    shown = [line for text, (_, entry) in zip(lines, entries, strict=True) for line in (text, *_examples(entry))]
    last = f"the sources hold {counts['source_bytes']:,} bytes decompressed, {around:,} of them around the texts"
    return [head, *shown, last]


def _examples(entry: Entry) -> list[str]:
    words = (" ".join(each.split()) for each in entry.examples)
    return [f"      {'such as' if number == 0 else '    and'} {each}" for number, each in enumerate(words)]


def _changes(corpus: Corpus) -> list[str]:
    lines = ["changed in texts that are kept, and left out around them"]
    for what, entry in Tally.from_json(corpus.counts["changed"]).items():
        lines += [f"  {entry.count:>11,} {what}", *_examples(entry)]
    return lines if len(lines) > 1 else []


def _searches(corpus: Corpus) -> list[str]:
    """Which filters ran beside the one for exact duplicates, and which did not."""
    found: dict[str, Any] = corpus.account.get("searches", {})
    lines = ["evaluation text: not looked for (--exclude FILE...)"]
    if evaluation := found.get("contamination"):
        action = "dropped" if evaluation["action"] == "drop" else "kept and reported only"
        lines = [
            f"evaluation text: documents with {evaluation['words']} words in a row of these files, whatever their case "
            f"and punctuation, were {action}"
        ]
        for each in evaluation["files"]:
            lines += _evaluation_file(each, evaluation["words"])
    near = found.get("near_duplicates")
    if near is None:
        return [*lines, "near-duplicates: not looked for (--near-duplicates)"]
    threshold = f"{near['threshold']:.0%}"
    return [
        *lines,
        f"near-duplicates: {counted(near['dropped'], 'document')} whose runs of {near['words_a_run']} words agree to "
        f"about {threshold} or more with those of an earlier",
        f"  document that is kept, by {near['by']} ({PERMUTATIONS} values each: estimates, give or take 4%); "
        f"{near['compared']:,} were compared,",
        f"  each with at most {LEADERS} kept ones of every bucket (documents with a band of values in common);",
        f"  a pair that agrees to just {threshold} shares one with a probability of {near['found_at_threshold']:.1%}",
    ]


def _evaluation_file(figures: dict[str, Any], words: int) -> list[str]:
    share = _ratio(figures["found"], figures["ngrams"], ".1%")
    return [
        f"  {figures['file']}: found in {counted(figures['documents'], 'document')} ({figures['bytes']:,} bytes)",
        f"      read as {figures['read_as']}",
        f"      texts: {figures['texts']:,}, {figures['short']:,} of them under {words} words and so not checkable; "
        f"{figures['labels']:,} values that are no text",
        f"      {figures['ngrams']:,} runs of {words} words, {figures['found']:,} of them ({share}) in the corpus",
        *_examples(Entry(examples=figures["examples"])),
    ]


def _figures(corpus: Corpus) -> list[str]:
    splits = [corpus.account["splits"][split] for split in SPLITS]
    counts = {name: [f"{split[name]:,}" for split in splits] for name in ("documents", "sentences", "tokens")}
    ratios = {
        "tokens a document": ("tokens", "documents", ".1f"),
        "tokens a sentence": ("tokens", "sentences", ".1f"),
        "pieces a word (punctuation counted)": ("tokens", "words", ".3f"),
        "share of [UNK]": ("unknown", "tokens", ".3%"),
    }
    rows = [
        ["", "train", "held out"],
        *([name, *values] for name, values in counts.items()),
        ["shards", *(f"{len(split['shards']):,}" for split in splits)],
        ["longest document, tokens", *(f"{split['longest'][0]:,}" for split in splits)],
        *([what, *(_ratio(each[of], each[by], form) for each in splits)] for what, (of, by, form) in ratios.items()),
    ]
    lines = [f"  {line}" for line in aligned(rows)]
    if tokens := corpus.tokens("train"):
        stored = sum(path.stat().st_size for path in (corpus.folder / "train").glob("*.npy"))
        lines.append(f"  train shards take {size(stored)}, {stored / tokens:.3f} bytes a token")
        lines.append(f"  the longest document is {splits[0]['longest'][1]}")
    return lines


def _ratio(count: int, of: int, form: str) -> str:
    return format(count / of, form) if of else "-"


def _samples(corpus: Corpus) -> list[str]:
    """The beginnings of a few documents, decoded from the shards, a sentence a line; and the shortest ones."""
    tokenizer = corpus.tokenizer()
    split = "train" if corpus.documents("train") else "held_out"
    count = len(corpus.shards(split))
    if not count:
        return ["no document is left, so there is none to show"]
    numbers = sorted({index * count // _SAMPLES for index in range(_SAMPLES)})
    shards = [(number, corpus.open_shard(split, number)) for number in numbers]
    lines = ["sample documents, as pieces read back (a sentence a line)"]
    for number, shard in shards:
        document = (len(shard.document_offsets) - 1) // 2
        sentences = np.diff(shard.document_offsets)[document]
        lines.append(f"  {split} shard {number}, document {document}, {counted(sentences, 'sentence')}")
        lines += _document(shard, document, tokenizer)
    lines.append("the shortest documents of these shards (longer ones alone: prepare with a higher --min-characters)")
    for number, shard in shards:
        lengths = np.diff(shard.sentence_offsets[shard.document_offsets])
        document = int(lengths.argmin())
        lines.append(f"  {split} shard {number}, document {document}, {counted(lengths[document], 'piece')}")
        lines += _document(shard, document, tokenizer)
    return lines


def _document(shard: Shard, document: int, tokenizer: Tokenizer) -> list[str]:
    lines = []
    first, last = (int(edge) for edge in shard.document_offsets[document : document + 2])
    for sentence in range(first, min(last, first + _SAMPLE_SENTENCES)):
        ids = shard.tokens[shard.sentence_offsets[sentence] : shard.sentence_offsets[sentence + 1]]
        more = f" ... ({len(ids):,} pieces)" if len(ids) > _SAMPLE_PIECES else ""
        text = f"{tokenizer.decode(ids[:_SAMPLE_PIECES])}{more}"
        lines += textwrap.wrap(text, _COLUMNS, initial_indent="    ", subsequent_indent="      ")
    return lines
