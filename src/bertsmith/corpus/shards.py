"""The corpus folder: `corpus.json`, the tokenizer, and shards of memory-mapped `.npy` arrays.

corpus.json                      counts, what was dropped and why, tokenizer hash, checksums of every file and of itself
tokenizer/                       tokenizer.json, vocab.txt, tokenizer_config.json
unigrams.npy                     int64[V], how often each piece occurs in the train split
train/00000.tokens.npy           uint16[tokens] (uint32 past 65,535 pieces), all documents one after the other
train/00000.sentences.npy        uint16[sentences], the pieces of each sentence (a longer one is split and counted)
train/00000.documents.npy        uint32[documents], the sentences of each document
held_out/00000...                the same for documents that no training batch ever shows
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, duration
from bertsmith.tokens.special_ids import SpecialIds, token_dtype

if TYPE_CHECKING:
    from bertsmith.tokens.tokenizer import Tokenizer

CORPUS_FORMAT = 2
SPLITS = ("train", "held_out")
LONGEST_SENTENCE = 65_535
ARRAYS = ("tokens", "sentences", "documents")
_SEAL = "sha256"
_NOT_AS_LISTED = "this shard does not hold what corpus.json lists"
_REMAKE = "prepare the corpus again into another folder, or copy it again from where it is whole"


@dataclass(frozen=True)
class ShardInfo:
    """A shard as `corpus.json` lists it. sha256: of each of its files, by name."""

    name: str
    documents: int
    sentences: int
    tokens: int
    sha256: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """One shard, memory-mapped.

    tokens: uint16 or uint32 [N]. sentence_offsets: int64[sentences + 1] into tokens. document_offsets:
    int64[documents + 1] into the sentences. No document and no sentence is empty.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    sentence_offsets: NDArray[np.int64]
    document_offsets: NDArray[np.int64]


def shard_file(name: str, array: str) -> str:
    """The file of one of a shard's ARRAYS."""
    return f"{name}.{array}.npy"


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus. `Corpus.open(folder)` reads it; shards are mapped, not loaded."""

    folder: Path
    account: dict[str, Any] = field(repr=False)
    """All that `corpus.json` holds."""

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Raises BertsmithError when the folder is no corpus, is of another format, was changed or lacks a file."""
        folder = files.as_path(folder, "corpus")
        if not (folder / "corpus.json").is_file():
            unfinished = (folder / ".work").is_dir()
            what = "this corpus was not finished" if unfinished else "there is no corpus here"
            fix = "run the same prepare command again" if unfinished else "make one with `bertsmith prepare`"
            raise BertsmithError(what, folder, fix)
        account = files.read_json(folder / "corpus.json", _REMAKE)
        if not isinstance(account, dict) or account.get("format") != CORPUS_FORMAT:
            raise BertsmithError(f"this corpus is not of format {CORPUS_FORMAT}", folder / "corpus.json", _REMAKE)
        if account.get(_SEAL, "") != sealed(account)[_SEAL]:
            raise BertsmithError("this file is not as it was written", folder / "corpus.json", _REMAKE)
        corpus = cls(folder, account)
        for split in SPLITS:
            for info in corpus.shards(split):
                for path in corpus._files(split, info):
                    if not path.is_file():
                        raise BertsmithError("a shard file is missing", path, _REMAKE)
        return corpus

    @cached_property
    def _shards(self) -> dict[str, list[ShardInfo]]:
        return {split: [ShardInfo(**shard) for shard in self.account["splits"][split]["shards"]] for split in SPLITS}

    def shards(self, split: str) -> list[ShardInfo]:
        """The shards of "train" or "held_out", in the order of the sources."""
        return self._shards[split]

    @property
    def counts(self) -> dict[str, Any]:
        """What was read, kept, dropped and changed, as `bertsmith inspect` shows it."""
        return dict(self.account["counts"])

    @property
    def doubt(self) -> str:
        """Why the corpus may come out otherwise when it is made again, or ""."""
        if self.account.get("reproducible", True):
            return ""
        given_up = self.account["given_up"]
        count, limit = len(given_up["pages"]), duration(given_up["at_last"])
        return (
            f"not reproducible: {counted(count, 'page')} took more than {limit} of CPU time and had to "
            "be given up, which another machine or --page-seconds may change"
        )

    def tokens(self, split: str) -> int:
        return sum(shard.tokens for shard in self.shards(split))

    def documents(self, split: str) -> int:
        return sum(shard.documents for shard in self.shards(split))

    @cached_property
    def special(self) -> SpecialIds:
        return SpecialIds(**self.account["tokenizer"]["special"])

    @cached_property
    def is_continuation(self) -> NDArray[np.bool_]:
        """bool[V]: the piece continues a word."""
        return self.tokenizer().is_continuation

    @property
    def tokenizer_sha256(self) -> str:
        return str(self.account["tokenizer"]["sha256"])

    def tokenizer(self) -> Tokenizer:
        """The tokenizer the corpus was made with. Raises BertsmithError when its files were changed since."""
        from bertsmith.tokens.tokenizer import Tokenizer  # here, so that reading shards needs numpy only

        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        if tokenizer.sha256 != self.tokenizer_sha256:
            what = "the tokenizer of this corpus was changed since the corpus was made, or is read otherwise now"
            fix = "put its files back, or prepare the corpus again; `bertsmith verify` lists what differs"
            raise BertsmithError(what, self.folder / "tokenizer", fix)
        return tokenizer

    def unigrams(self) -> NDArray[np.int64]:
        """int64[V]: how often each piece occurs in the train split. The baseline that a model must beat."""
        return np.asarray(_read_array(self.folder / "unigrams.npy", np.dtype(np.int64)), dtype=np.int64)

    def open_shard(self, split: str, index: int) -> Shard:
        """Maps shard `index` of `split`. Raises BertsmithError when a file is missing, cut or not what is listed."""
        info = self.shards(split)[index]
        tokens, sentences, documents = self._arrays(split, info)
        shard = Shard(tokens, offsets_of(sentences), offsets_of(documents))
        if (shard.sentence_offsets[-1], shard.document_offsets[-1]) != (info.tokens, info.sentences):
            raise BertsmithError(_NOT_AS_LISTED, self._files(split, info)[0], _REMAKE)
        return shard

    def check_sizes(self) -> None:
        """Raises BertsmithError for the first shard that lacks a file or has one of another size than listed. It reads
        the files' headers; `verify` reads everything."""
        for split in SPLITS:
            for info in self.shards(split):
                self._arrays(split, info)

    def _files(self, split: str, info: ShardInfo) -> list[Path]:
        return [self.folder / split / shard_file(info.name, array) for array in ARRAYS]

    def _arrays(self, split: str, info: ShardInfo) -> list[NDArray[Any]]:
        """The ARRAYS of a shard, mapped."""
        kinds: tuple[DTypeLike, ...] = (token_dtype(self.special.vocabulary_size), np.uint16, np.uint32)
        paths = self._files(split, info)
        arrays = [_read_array(path, kind) for path, kind in zip(paths, kinds, strict=True)]
        for path, array, listed in zip(paths, arrays, (info.tokens, info.sentences, info.documents), strict=True):
            if len(array) != listed:
                raise BertsmithError(_NOT_AS_LISTED, path, _REMAKE)
        return arrays


def sealed(account: Mapping[str, Any]) -> dict[str, Any]:
    """What corpus.json holds, with the SHA-256 of all of it."""
    rest = {name: value for name, value in account.items() if name != _SEAL}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return rest | {_SEAL: hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()}


def verify(corpus: Corpus) -> int:
    """Reads every file of the corpus and compares its SHA-256; returns how many were compared, corpus.json left out.

    Raises BertsmithError that names every file which is missing or differs.
    """
    listed = [(corpus.folder / "unigrams.npy", corpus.account["unigrams_sha256"])]
    listed += [
        (corpus.folder / "tokenizer" / name, wanted) for name, wanted in corpus.account["tokenizer_files"].items()
    ]
    for split in SPLITS:
        for info in corpus.shards(split):
            listed += [(corpus.folder / split / name, wanted) for name, wanted in info.sha256.items()]
    bad = [str(path) for path, wanted in listed if not path.is_file() or files.sha256(path) != wanted]
    if bad:
        raise BertsmithError(f"{len(bad)} of {len(listed)} files differ from what was written", ", ".join(bad), _REMAKE)
    return len(listed)


def write_arrays(folder: Path, name: str, arrays: Sequence[NDArray[Any]]) -> list[Path]:
    """Writes tokens, sentence lengths and document lengths into `folder`; returns the files."""
    paths = [folder / shard_file(name, array) for array in ARRAYS]
    for path, values in zip(paths, arrays, strict=True):
        with open(path, "wb") as file:
            np.lib.format.write_array(file, values, allow_pickle=False)
    return paths


def write_shard(folder: Path, name: str, arrays: Sequence[NDArray[Any]]) -> ShardInfo:
    """As `write_arrays`; the info lists the checksums of the files."""
    checksums = {path.name: files.sha256(path) for path in write_arrays(folder, name, arrays)}
    tokens, sentences, documents = arrays
    return ShardInfo(name, len(documents), len(sentences), len(tokens), checksums)


def offsets_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """int64[N + 1]: where each of N stretches of these lengths begins, and the last one ends."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _read_array(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    try:
        with files.read_errors(path):
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise BertsmithError("this file is missing", path, _REMAKE) from error
    except (ValueError, EOFError) as error:
        raise BertsmithError(f"this file is damaged ({error})", path, _REMAKE) from error
    if array.dtype != dtype or array.ndim != 1:
        raise BertsmithError(f"this file holds {array.dtype}{list(array.shape)}, not {dtype}[N]", path, _REMAKE)
    return array
