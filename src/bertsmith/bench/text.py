"""The text that all sides read: one plain file, a document a line, cut from whatever source is found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import data_folder
from bertsmith.base.log import say, size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources.find import SourceFile, find_files
from bertsmith.corpus.sources.formats import read_documents
from bertsmith.corpus.sources.kept import PYTHON_DOCS, keep
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import train_vocabulary

_VOCABULARY, _SAMPLE_BYTES = 30_522, 16_000_000
_FEWEST_CHARACTERS = 20


@dataclass(frozen=True)
class Text:
    """A file of text. text_bytes: without line ends, which is what every side must have read."""

    path: Path
    text_bytes: int
    documents: int


def name_sources(source: Sequence[str]) -> str:
    """The sources as a report names them; paths inside the data folder are relative to it."""
    folder = data_folder()
    inside = [Path(each).is_relative_to(folder) for each in source]
    return ", ".join(
        str(Path("$BERTSMITH_DATA", Path(each).relative_to(folder))) if is_inside else each
        for each, is_inside in zip(source, inside, strict=True)
    )


def default_source() -> str:
    """Wikipedia if it is in the data folder, else the documentation that comes with Python."""
    wiki = data_folder() / "wiki"
    return str(wiki) if wiki.is_dir() else PYTHON_DOCS


def cut_texts(source: Sequence[str], sizes_bytes: Sequence[int], folder: Path) -> list[Text]:
    """Writes a text of each size; the smaller ones begin as the larger ones do. Sizes rise.

    A source that is too small is read again, with every document marked by its round, so that no copy counts as a
    duplicate; the log says so. Raises BertsmithError for a source without text.
    """
    texts: list[Text] = []
    documents = _rounds(source, folder)
    text_bytes = written = 0
    for number, wanted in enumerate(sizes_bytes):
        path = folder / f"text-{number}.txt"
        if texts:
            shutil.copyfile(texts[-1].path, path)
        with open(path, "a", encoding="utf-8", newline="\n") as file:
            while text_bytes < wanted:
                line = next(documents)
                file.write(line + "\n")
                text_bytes += len(line.encode())
                written += 1
        texts.append(Text(path, text_bytes, written))
    return texts


def _rounds(source: Sequence[str], folder: Path) -> Iterator[str]:
    options = ReadOptions()
    kept, _ = keep(source, folder, options.text_field)
    found, _ = find_files(source, options, kept)
    for number in count():
        lines = 0
        for line in _lines(found):
            yield f"Round {number} of this text. {line}" if number else line
            lines += 1
        if not lines:
            raise BertsmithError("this source holds no text", ", ".join(source), "give a source with more text in it")
        say(f"the source is read again, each document marked (round {number + 2})")


def _lines(found: Sequence[SourceFile]) -> Iterator[str]:
    """Every document of these files as one line, its paragraphs joined."""
    options = ReadOptions()
    for file in found:
        for document in read_documents(file.whole(), options, Account()):
            line = " ".join(document.text.split())
            if len(line) >= _FEWEST_CHARACTERS:
                yield line


def vocabulary_for(tokenizer: Path | None, text: Text, folder: Path) -> tuple[Path, str]:
    """A folder with the vocabulary of all sides, and its description: the given one, else BERT's if the data folder
    has it, else one trained on the text."""
    known = data_folder() / "vocab" / "bert-base-uncased" / "vocab.txt"
    if tokenizer is not None:
        chosen, what = Tokenizer.load(tokenizer), str(tokenizer)
    elif known.is_file():
        chosen, what = Tokenizer.load(known), "bert-base-uncased"
    else:
        with open(text.path, "rb") as file:
            sample = file.read(_SAMPLE_BYTES).decode(errors="ignore").splitlines()  # the last letter may be cut
        trained_on = size(min(_SAMPLE_BYTES, text.text_bytes))
        chosen, what = train_vocabulary(sample, _VOCABULARY), f"trained on {trained_on} of the text"
    chosen.save(folder)
    return folder, f"{what}, {chosen.size:,} pieces"
