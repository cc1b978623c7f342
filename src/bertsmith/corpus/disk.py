"""How much disk a preparation will need at its peak, estimated from a small sample before it starts.

At the peak, when the last shard is assembled, the work folder holds the cleaned texts, the ids by part and the ids by
shard. The sample is read, cleaned and tokenised by what does it later, so that what is counted is what will be written.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import LOCK_FILE
from bertsmith.base.log import say, size, warn
from bertsmith.base.tally import Tally
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions, batched
from bertsmith.corpus.filters.contamination import ExcludeTask, IndexTask, make_index, search_part
from bertsmith.corpus.filters.duplicates import kept_documents
from bertsmith.corpus.filters.near_duplicates import signed_bytes
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.sources.find import SourceFile
from bertsmith.corpus.sources.formats import KINDS, read_documents
from bertsmith.corpus.sources.unpack import is_unpacked
from bertsmith.corpus.stages.clean import CleanedPart, CleanTask, clean_into
from bertsmith.rows.lines import Slice, head_of
from bertsmith.rows.parquet import text_bytes
from bertsmith.tokens.bulk_ids import bulk_encoder, choose_library
from bertsmith.tokens.special_ids import token_dtype
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import count_words, rounded_size

# What is sampled of each kind of source: this many windows, evenly over it; or the heads of this many files.
_WINDOWS = 24
_WINDOW_BYTES = 64 << 10
_HEADS_BYTES = 512 << 10
_PACKED_HEAD_BYTES = 4 << 20
_PACKED_HEADS = 4
_MOST_UNPACKED = 20
_TOKENISED_BYTES = 1 << 20
# Pieces a word by size of the vocabulary, between what English Wikipedia and old books gave.
_PIECES_A_WORD = ((512, 2.1), (2048, 1.5), (8192, 1.17), (30528, 1.04))
# A sentence has some 25 tokens and takes 2 bytes; a document 4.
_TOKENS_A_SENTENCE = 25
_DOCUMENT_BYTES = 4
# Words that are counted for a vocabulary: bytes written a byte of text, of parts of 4 MB.
_COUNTED_WORDS = 0.15
# Of a part: marks, and what files take beyond their length.
_SLACK_BYTES = 40_000
# A row of the vocabulary, in the corpus: its piece in two files, and its count.
_PIECE_BYTES, _COUNT_BYTES = 31, 8


@dataclass(frozen=True)
class _Sample:
    """What one kind of source holds, extrapolated from its sample.

    documents, tokens: of the documents that hold no evaluation text, where others are dropped.
    """

    text_bytes: float
    cleaned_bytes: float
    documents: float
    tokens: float
    unpacked_bytes: float


@dataclass(frozen=True)
class Need:
    """Bytes on disk: at the peak, work files included, and of the finished corpus."""

    peak_bytes: int
    corpus_bytes: int


def estimate(found: Sequence[SourceFile], options: PrepareOptions, tokenizer: Tokenizer | None, work: Path) -> Need:
    """Reads a sample of the sources, 1.5 MB a kind at most, in a folder under `work`; of evaluation text it makes the
    very index that is searched later.

    Within 10% for plain text and tables; of packed files only the heads are read, and of duplicates nothing is known,
    so it is above what is used where many documents are copies. Raises BertsmithError for files that cannot be read.
    """
    index = IndexTask.of(work, options.exclude) if options.exclude else None
    if index is not None:
        make_index(index)
    ordered = sorted(found, key=_sort)
    with files.disk_errors(work):
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".estimate.", suffix=".part", dir=work) as folder:
            samples = [
                _sample(list(group), options, tokenizer, index, Path(folder, str(number)))
                for number, (_, group) in enumerate(groupby(ordered, key=_sort))
            ]
    text, cleaned, documents, tokens, unpacked = (sum(column) for column in zip(*map(astuple, samples), strict=True))
    rows = tokenizer.size if tokenizer else rounded_size(options.vocabulary_size)
    ids = tokens * (token_dtype(rows).itemsize + 2 / _TOKENS_A_SENTENCE) + documents * _DOCUMENT_BYTES
    corpus = ids + rows * (_PIECE_BYTES + _COUNT_BYTES)
    parts = max(1.0, text / options.part_bytes)
    words = 0 if tokenizer else min(text, options.sample_bytes) * _COUNTED_WORDS
    by_part = parts * (rows * _COUNT_BYTES + _SLACK_BYTES)
    near = documents * signed_bytes(options.near_threshold) if options.near_duplicates else 0.0
    searched = sum(path.stat().st_size for path in index.folder.iterdir()) if index is not None else 0
    besides = words + unpacked + rows * _PIECE_BYTES + by_part + near + searched
    return Need(int(cleaned + ids + corpus + besides), int(corpus))


def check_disk(need: Need, out: Path) -> None:
    """Says what will be needed. Raises BertsmithError where the disk has less free, work that is there counted in."""
    there = sum(path.stat().st_size for path in out.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    free = shutil.disk_usage(out).free
    say(
        f"disk: about {size(need.peak_bytes)} at the peak, {size(need.corpus_bytes)} in the end; {size(free)} free"
        + (f", {size(there)} there already" if there else "")
    )
    if need.peak_bytes > free + there:
        raise BertsmithError(
            f"this needs about {size(need.peak_bytes)} of disk while this runs, only {size(free + there)} is free",
            out,
            "free some space, or choose another folder with --out",
        )
    if need.peak_bytes > 0.9 * (free + there):
        warn("the disk may fill up: what this needs is within a tenth of what is free")


def _sort(file: SourceFile) -> tuple[str, str, str]:
    return file.kind, file.codec, file.encoding


def _sample(
    group: Sequence[SourceFile],
    options: PrepareOptions,
    tokenizer: Tokenizer | None,
    index: IndexTask | None,
    folder: Path,
) -> _Sample:
    """One kind of source, as its sample has it. index: of evaluation text, or None."""
    total, kind, codec = sum(file.size_bytes for file in group), group[0].kind, group[0].codec
    folder.mkdir()
    # A head ends anywhere, which is no damage; what is damaged stops the preparation itself, which reads all of it.
    reading = replace(options.reading, strict=False)
    part = folder / "cleaned"
    part.mkdir()

    def clean(slices: Sequence[Slice], texts_alone: bool = False) -> int:
        """Cleans a sample into `part`; returns how many bytes it read, of texts alone or with what is around them."""
        account, _ = clean_into(part, CleanTask(part, "", tuple(slices), reading, options.min_characters))
        return account.bytes if texts_alone else account.stream_bytes

    times = 1.0
    if kind == "parquet":
        read = clean([_first_rows(group, reading, folder)], texts_alone=True)
        times = sum(sum(text_bytes(file.path, options.text_field)) for file in group) / total
    elif KINDS[kind].is_start is not None and not codec and not group[0].encoding:
        read = clean([_window(file, place) for file, place in _places(group, total)])
        if read < min(total, _WINDOW_BYTES):  # documents so long that hardly a window holds the start of one
            read = clean([_window(max(group, key=lambda file: file.size_bytes), 0)])
    else:
        slices, times = _heads(group, total, folder)
        read = clean(slices)
    if not read:
        return _Sample(0, 0, 0, 0, 0)
    cleaned = CleanedPart.open(part)
    times *= total / read
    arrays = [np.load(path, mmap_mode="r", allow_pickle=False).nbytes for path in part.glob("*.npy")]
    written = sum(arrays) + (part / "texts.bin").stat().st_size
    drops = [_searched(part, index)] if index is not None and options.exclude_action == "drop" else []
    free = kept_documents(cleaned, drops, 0)
    tokens = float(cleaned.lengths[free, 1].sum()) * _tokens_a_byte(cleaned, tokenizer, options)
    packed = sum(file.size_bytes for file in group if is_unpacked(file, options.reading, options.part_bytes))
    sampled = (float(cleaned.lengths[:, 1].sum()), written, float(free.sum()), tokens, read * packed / total)
    return _Sample(*(value * times for value in sampled))


def _searched(part: Path, index: IndexTask) -> Path:
    """The folder that says which documents of a cleaned part, the only one, hold evaluation text."""
    names = tuple(path.name for path in index.files)
    search = ExcludeTask(part.with_name("searched"), "", 0, part, (), index.folder, names)
    search_part(search)
    return search.folder


def _places(group: Sequence[SourceFile], total: int) -> Iterator[tuple[SourceFile, int]]:
    """Files and places in them, evenly over the bytes of the group."""
    count = max(1, min(_WINDOWS, total // _WINDOW_BYTES))
    places = [int((number + 0.5) * total / count) for number in range(count)]
    passed = 0
    for file in group:
        while places and places[0] < passed + file.size_bytes:
            yield file, places.pop(0) - passed
        passed += file.size_bytes


def _window(file: SourceFile, place: int) -> Slice:
    """The documents that begin in the window around a place, if any; in the first one at least one does."""
    begin = max(0, min(place - _WINDOW_BYTES // 2, file.size_bytes - _WINDOW_BYTES))
    end = begin + _WINDOW_BYTES
    return replace(file.whole(), begin=begin, end=end if end < file.size_bytes else None)


def _heads(group: Sequence[SourceFile], total: int, folder: Path) -> tuple[list[Slice], float]:
    """Copies of the heads of files that cannot be read from the middle; and bytes of UTF-8, decompressed, a byte of the
    source."""
    chosen = list(dict.fromkeys(file for file, _ in _places(group, total)))
    if group[0].codec:
        chosen = chosen[:: -(-len(chosen) // _PACKED_HEADS)]
    most = _HEADS_BYTES // len(chosen)
    slices, packed_bytes, unpacked_bytes = [], 0, 0
    for number, file in enumerate(chosen):
        path = folder / f"head{number}"
        with open(file.path, "rb") as source:
            head = source.read(_PACKED_HEAD_BYTES // len(chosen) if file.codec else most)
        if file.codec or file.encoding:
            packed_bytes += len(head)
            unpacked_bytes += _cut_block_bytes(head) if file.codec == "bz2" and len(head) < file.size_bytes else 0
            path.write_bytes(head)
            head = head_of(path, file.codec, file.encoding, _MOST_UNPACKED * len(head))
            unpacked_bytes += len(head)
        path.write_bytes(head[:most])
        slices.append(replace(file.whole(), path=str(path), codec="", encoding=""))
    return slices, unpacked_bytes / packed_bytes if packed_bytes else 1.0


def _cut_block_bytes(head: bytes) -> int:
    """What is lost where a bz2 file is cut: on average half a block, of as many 100 kB as its fourth byte says."""
    return int(head[3:4]) * 50_000 if head[3:4].isdigit() else 0


def _first_rows(group: Sequence[SourceFile], reading: ReadOptions, folder: Path) -> Slice:
    """Documents of parquet files as JSON lines: of the first, and of as many more as it takes where that has few."""
    path, held = folder / "rows.jsonl", 0
    documents = (document for file in group for document in read_documents(file.whole(), reading, Account()))
    with open(path, "w", encoding="utf-8") as rows, closing(documents):
        for document in documents:
            held += rows.write(json.dumps({reading.text_field: document.text}, ensure_ascii=False) + "\n")
            if held > _HEADS_BYTES:
                break
    return Slice(str(path), group[0].name, "jsonl")


def _tokens_a_byte(cleaned: CleanedPart, tokenizer: Tokenizer | None, options: PrepareOptions) -> float:
    all_texts = (document.text for _, document in cleaned.documents(range(len(cleaned.lengths))))
    texts = next(batched(all_texts, lambda text: len(text.encode()), _TOKENISED_BYTES), [])
    held = sum(len(text.encode()) for text in texts)
    if tokenizer is not None:
        ids, _ = bulk_encoder(tokenizer, choose_library(tokenizer)).encode(texts)
        return len(ids) / max(held, 1)
    words = sum(count_words(texts, options.lowercase, Tally()).values())
    sizes, pieces = zip(*_PIECES_A_WORD, strict=True)
    a_word = np.interp(math.log(options.vocabulary_size), [math.log(each) for each in sizes], pieces)
    return float(a_word) * words / max(held, 1)
