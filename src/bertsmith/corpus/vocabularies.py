"""`bertsmith vocab`: a vocabulary trained on a sample of the sources, extended or kept as it is, and a report on it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, TypeChecked, check_class
from bertsmith.base.log import say
from bertsmith.base.tally import Tally
from bertsmith.corpus.documents import DocumentRule, ReadOptions
from bertsmith.corpus.sources.find import as_sources
from bertsmith.corpus.text_sample import TextSample, sample_text
from bertsmith.corpus.vocabulary_report import KNOWN, Figures, advice, examples, measure, table, warn_of_letters
from bertsmith.tokens.extension import NewWord, costly_words, extend
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import (
    SMALLEST,
    check_size,
    normalizer_for,
    share_without_rows,
    train_on_counts,
    words_of,
)

DEFAULT_SIZE = 30_522
REPORT_FILE = "vocabulary.json"
_REFERENCE = "bert-base-uncased"
_REFERENCE_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"  # of its vocab.txt
_EXAMPLES_KEPT = 1000


@dataclass(frozen=True)
class VocabularyOptions(TypeChecked):
    """Options of `vocab`. The string under a field is its help on the command line."""

    size: int | None = None
    """Pieces, rounded up to a multiple of 64; without it 30522, and with --reuse or --use-unused those it has."""
    cased: bool = False
    """Train a vocabulary that keeps capital letters and accents."""
    extend: Path | None = None
    """A tokenizer's folder or vocab.txt that gets the words which cost it most pieces; every old piece keeps its id."""
    use_unused: bool = False
    """With --extend: new words first take the places of [unusedN] pieces."""
    reuse: Path | None = None
    """A tokenizer's folder or vocab.txt to keep as it is, and to measure on the text."""
    compare_with: tuple[Path, ...] = ()
    """Tokenizers to compare with, beside bert-base-uncased where its vocab.txt is found on this machine."""
    documents: DocumentRule = "file"
    """What a document is in plain text: a file; lines between blank lines, a sentence each; or a line."""
    text_field: str = "text"
    """The field of JSON lines and tables that holds the text."""
    sample_bytes: int = 64_000_000
    """The most text that is counted, drawn evenly from all documents."""
    workers: int | None = None
    """Worker processes; all cores where none is given."""

    def check(self) -> None:
        """Raises BertsmithError where options contradict each other."""
        if self.extend and self.reuse:
            raise BertsmithError(
                "a vocabulary is either extended or kept as it is", "--extend and --reuse", "give one of them"
            )
        if self.reuse and self.size is not None:
            raise BertsmithError("a vocabulary that is kept as it is has its own size", "--size", "omit it")
        if self.use_unused and not self.extend:
            raise BertsmithError("--use-unused applies only to extending a vocabulary", "--use-unused", "add --extend")
        if self.cased and (self.extend or self.reuse):
            fix = "omit it: a vocabulary that is extended or kept keeps its casing"
            raise BertsmithError("--cased applies only to training a vocabulary", "--cased", fix)
        if self.extend and self.size is None and not self.use_unused:
            fix = "add --size with more pieces than it has, or --use-unused"
            raise BertsmithError("the size of the extended vocabulary is missing", "--extend", fix)
        if self.size is not None:
            check_size(self.size, "--size", 1 if self.extend else SMALLEST)
        for name in ("sample_bytes", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BertsmithError(f"{name} is {value}", "options of vocab", "use a whole number from 1")


def make_vocabulary(
    sources: str | Path | Sequence[str | Path], out: str | Path, options: VocabularyOptions | None = None
) -> Tokenizer:
    """Makes a tokenizer folder from the sources and says what it makes of their text, compared with other vocabularies.

    The figures also go to vocabulary.json in the folder. Raises BertsmithError for options that contradict each other,
    sources without text, a size without room, a folder that holds anything, and a disk that refuses.
    """
    check_class(options, VocabularyOptions, "options")
    options, sources, out = options or VocabularyOptions(), as_sources(sources), files.as_path(out, "out")
    options.check()
    _check_free(out)
    base = options.extend or options.reuse
    old = Tokenizer.load(base) if base else None
    if old is not None and options.extend:
        extend(old, [], options.size, options.use_unused)  # so that want of room shows before any text is read
    names = _names(filter(None, (out, options.extend, *options.compare_with)))
    others = {names[path]: Tokenizer.load(path) for path in options.compare_with}
    reading = ReadOptions(options.documents, options.text_field)
    sample = sample_text(sources, reading, options.sample_bytes, options.workers)
    added: list[NewWord] = []
    left_out = Tally()
    if old is None:
        words = words_of(sample.stretches, normalizer_for(not options.cased), left_out)
        tokenizer = train_on_counts(words, options.size or DEFAULT_SIZE, not options.cased)
        warn_of_letters(share_without_rows(words, tokenizer), "--size")
    elif options.extend:
        costly = costly_words(old, words_of(sample.stretches, old.normalizer, left_out))
        tokenizer, added = extend(old, costly, options.size, options.use_unused)
        others = {names[options.extend]: old, **others}
    else:
        tokenizer = old
    _tell(tokenizer, old, added, sample)
    for line in left_out.lines():
        say(f"  {line}")
    name = names[out]
    rows = _report(name, tokenizer, others, sample, is_new=tokenizer is not old)
    if options.extend:
        saved = rows[names[options.extend]]["tokens"] - rows[name]["tokens"]
        say(f"the new words save {saved:,} pieces of {sample.said()}; such as {examples(added) or 'none'}")
    listed = [{"word": new.word, "count": new.count, "pieces": new.pieces} for new in added[:_EXAMPLES_KEPT]]
    values = {"sample_bytes": sample.bytes, "vocabularies": rows, "added": len(added), "first_added": listed}
    with files.whole_folder(out) as aside:
        tokenizer.save(aside)
        files.write_json(aside / REPORT_FILE, {"sources": [str(source) for source in sources], **values})
    return tokenizer


def _check_free(out: Path) -> None:
    """Raises BertsmithError where something is there already, the tokenizer of a corpus or a model, say, and where
    nothing can be made."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise BertsmithError("this is there already", out, "give another folder with --out, or remove this one first")
    # It is written beside its place, and then moved there.
    files.check_place(out.resolve().parent if out.is_dir() else out)


def _names(paths: Iterable[Path]) -> dict[Path, str]:
    """What the table calls each tokenizer: its folder, or its path where two folders have the same name."""
    in_files = ("vocab.txt", "tokenizer.json")
    folders = {path: (path.name in in_files and path.parent.name) or path.name for path in paths}
    shared = Counter(folders.values())
    return {path: folder if folder and shared[folder] == 1 else str(path) for path, folder in folders.items()}


def _tell(tokenizer: Tokenizer, old: Tokenizer | None, added: Sequence[NewWord], sample: TextSample) -> None:
    unused = sum(piece.startswith("[unused") for piece in tokenizer.pieces)
    casing = "lower-cased" if tokenizer.lowercase else "cased"
    pieces = f"{tokenizer.size:,} pieces, {unused:,} of them unused, {casing}"
    text = sample.said()
    if old is None:
        say(f"vocabulary: {pieces}, trained on {text}")
    elif tokenizer is old:
        say(f"vocabulary: {pieces}, kept as it is; measured on {text}")
    else:
        say(f"vocabulary: {pieces}; {len(added):,} new words, each of which stood for several pieces or was [UNK]")
    say(
        "  duplicates in the sample were not removed, so what is in two documents counts twice (`bertsmith prepare` "
        "drops duplicates first, and trains a vocabulary where it is given none)"
    )


def _report(
    name: str, tokenizer: Tokenizer, others: Mapping[str, Tokenizer], sample: TextSample, *, is_new: bool
) -> dict[str, Any]:
    """Says the table; returns its rows for vocabulary.json. is_new: as of `advice`."""
    rows = {name: measure(tokenizer, sample.stretches, sample.bytes)}
    itself = _is_reference(tokenizer)
    for other, theirs in {**({} if itself else _found_reference(name, others)), **others}.items():
        rows[other] = measure(theirs, sample.stretches, sample.bytes)
    compared = [other for other in rows if other != name]
    shown: dict[str, Figures] = rows if any(_REFERENCE in other for other in rows) else {**rows, **KNOWN}
    for line in table(shown):
        say(f"  {line}")
    for other in compared:
        say(advice(rows[name], rows[other], other, is_new))
    if shown is not rows and not itself:
        say(
            f"{_REFERENCE} was measured on other text; name its vocab.txt with --compare-with to measure it on this one"
        )
    return {each: figures.to_json() for each, figures in rows.items()}


def _is_reference(tokenizer: Tokenizer) -> bool:
    return hashlib.sha256("".join(f"{piece}\n" for piece in tokenizer.pieces).encode()).hexdigest() == _REFERENCE_SHA256


def _found_reference(name: str, others: Mapping[str, Tokenizer]) -> dict[str, Tokenizer]:
    """The best-known vocabulary, where it is on this machine; it is not shipped with us.

    name: that of the vocabulary it is compared with.
    """
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    places = [files.data_folder() / "vocab" / _REFERENCE / "vocab.txt"]
    for repository in (f"models--google-bert--{_REFERENCE}", f"models--{_REFERENCE}"):
        places += sorted(hub.glob(f"{repository}/snapshots/*/vocab.txt"))
    found = next((path for path in places if path.is_file()), None)
    if found is None or _REFERENCE in others:
        return {}
    say(f"comparing with {found}")
    return {_REFERENCE if name != _REFERENCE else str(found): Tokenizer.load(found)}
