"""Raw text to a corpus folder: sources -> clean parts -> duplicates -> vocabulary -> ids -> shards -> corpus.json.

Every stage is a list of parts that depend on their inputs alone and are made once (see `engines/parts`), so the bytes
of the result are the same for any number of workers and after any number of interruptions.
"""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, check_class
from bertsmith.base.log import counted, first_of, say, warn
from bertsmith.base.tally import Tally
from bertsmith.corpus.disk import check_disk, estimate
from bertsmith.corpus.engines.open import held, open_engine
from bertsmith.corpus.engines.parts import WORK, by_other_versions, fingerprint
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.pipeline import Pipeline, other_split
from bertsmith.corpus.shards import Corpus
from bertsmith.corpus.sources.find import SourceFile, as_sources, find_files
from bertsmith.corpus.sources.formats import KINDS
from bertsmith.corpus.sources.kept import PYTHON_DOCS, STANDARD_INPUT, Kept, forget, keep
from bertsmith.corpus.stages.publish import PUBLISHED, publish
from bertsmith.corpus.stages.sentences import has_rules
from bertsmith.tokens.tokenizer import Tokenizer

# Raise when the same sources and options come to give another corpus.
_VERSION = 4
# What decides beside the sources and the options.
_OUTSIDE = ("tokenizer", "version")


def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    options: PrepareOptions | None = None,
) -> Corpus:
    """Makes the corpus folder `out` from the sources, or opens it where it was made of the same.

    sources: files, folders, globs, "-" for standard input, "python-docs". tokenizer: one, or where it lies; without it
    a vocabulary is trained. Returns the corpus, which `bertsmith.pretrain` takes as it takes the folder.
    A run that was interrupted is resumed. Raises BertsmithError for sources that are missing or hold nothing,
    options out of range, a folder in use or holding something else, and a disk that refuses; finished work stays.
    """
    check_class(options, PrepareOptions, "options")
    options = options or PrepareOptions()
    options.check()
    out = files.as_path(out, "out")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    for line in options.without_effect(options.idle(tokenizer is not None)):
        warn(line)
    if not has_rules(options.language):
        what = f"the splitter of sentences has no rules for language '{options.language}'"
        warn(f"{what}, so English ones are used: abbreviations may end sentences (check the code: en, de, pt)")
    named = as_sources(sources)
    found, passed, kept = _find(named, out, options)
    for line in options.without_effect(_without_source(found)):
        warn(line)
    try:
        return _prepare(named, found, passed, out, tokenizer=tokenizer, options=options)
    finally:
        if (out / "corpus.json").is_file():
            forget(kept)


def _without_source(found: Sequence[SourceFile]) -> dict[str, str]:
    """The options that none of the sources takes, with the reason."""
    kinds = {file.kind for file in found}
    takers = {
        "documents": (kinds & {"file", "blank-line", "line"}, "no source is plain text"),
        "text_field": ([kind for kind in kinds if KINDS[kind].has_field], "no source has fields"),
        "page_seconds": (kinds & {"mediawiki"}, "no source is a dump"),
    }
    return {name: why for name, (taking, why) in takers.items() if not taking}


def _find(
    named: Sequence[str | Path], out: Path, options: PrepareOptions
) -> tuple[list[SourceFile], Tally, dict[str, Kept]]:
    """As `find_files`, and the sources that were written to files first. A fault leaves no folder behind."""
    given = set(map(str, named))
    if not given & {STANDARD_INPUT, PYTHON_DOCS}:
        return *find_files(named, options.reading, own=out), {}
    if STANDARD_INPUT in given and options.array_task is not None:
        fix = "write it to a file that all tasks see, and name that"
        raise BertsmithError("the tasks of an array job have no standard input in common", STANDARD_INPUT, fix)
    new = not out.exists()
    try:
        with _held(options, out):
            stream = sys.stdin.buffer if sys.stdin else io.BytesIO()  # None where it is closed
            kept, left_out = keep(named, out / WORK, options.text_field, stream)
        found, passed = find_files(named, options.reading, kept, own=out)
        passed.add(left_out)
        return found, passed, kept
    except BertsmithError:
        if new:
            shutil.rmtree(out, ignore_errors=True)
        raise


def _prepare(
    named: Sequence[str | Path],
    found: list[SourceFile],
    passed: Tally,
    out: Path,
    *,
    tokenizer: Tokenizer | None,
    options: PrepareOptions,
) -> Corpus:
    made_of = _made_of(named, found, tokenizer, options)
    found = [dataclasses.replace(file, path=os.path.abspath(file.path)) for file in found]
    with _held(options, out):
        if (out / "corpus.json").is_file():
            corpus = Corpus.open(out)
            _check_same(corpus, made_of, options)
            if options.array_task is None:  # else other tasks may be at it
                publish(out)  # ends what was stopped between the last move and the removal of the work
            say(f"corpus: {out} is finished, from the same sources and options; nothing to do")
            if corpus.doubt:
                warn(f"this corpus is {corpus.doubt}")
            return corpus
        with open_engine(
            out, fingerprint(made_of), options.engine, options.address, options.array_task, options.workers
        ) as engine:
            if not _awaits_publishing(out / WORK / "corpus", made_of, options):
                if options.array_task is None:
                    _sweep(out / WORK)
                if by_other_versions(out / WORK):
                    what = "what other versions of Bertsmith, Python or a library left unfinished here"
                    say(f"corpus: {what} is made again, since their rules may be others")
                engine.once("disk", lambda: check_disk(estimate(found, options, tokenizer, out / WORK), out))
                Pipeline((out / WORK).absolute(), options, engine, made_of).run(found, passed, tokenizer)
            engine.once("publish", lambda: publish(out))
    corpus = Corpus.open(out)
    _tell(corpus)
    return corpus


def _made_of(
    named: Sequence[str | Path], found: Sequence[SourceFile], tokenizer: Tokenizer | None, options: PrepareOptions
) -> dict[str, Any]:
    """All that decides what the corpus holds, for corpus.json and for the next time the command is run."""
    listed = [(file.name, file.kind, file.codec, file.stamp) for file in found]
    return {
        "sources": [str(source) for source in named],
        "files": {"count": len(found), "fingerprint": fingerprint(listed)},
        "tokenizer": "trained" if tokenizer is None else tokenizer.sha256,
        "options": options.deciding(tokenizer is not None),
        "version": _VERSION,
    }


def _check_same(corpus: Corpus, made_of: dict[str, Any], options: PrepareOptions) -> None:
    """Raises BertsmithError that says how a finished corpus differs from the one requested."""
    theirs = corpus.account["made_of"]
    differing = []
    if theirs["files"] != made_of["files"]:
        same = theirs["sources"] == made_of["sources"]
        names = (", ".join(each["sources"]) for each in (theirs, made_of))
        changed = "files of the sources changed since, or are read in another way"
        differing.append(changed if same else "sources: {} in the folder, {} requested".format(*names))
    there, asked = ({**each["options"], **{name: each[name] for name in _OUTSIDE}} for each in (theirs, made_of))
    pairs = ((name, there.get(name, "nothing"), value) for name, value in asked.items())
    differing += [
        f"{name}: {theirs} in the folder, {ours} requested"
        for name, theirs, ours in pairs
        if theirs != ours and None not in (theirs, ours)  # None has no effect without another option, which differs
    ]
    if not _same_limit(corpus.account, options):
        seconds = corpus.account["given_up"]["page_seconds"]
        differing.append(
            f"page_seconds: {seconds} in the folder, and pages were given up, {options.page_seconds} requested"
        )
    if differing:
        raise BertsmithError(
            f"this folder holds a finished corpus that was made differently ({'; '.join(differing)})",
            corpus.folder,
            "give another folder with --out, or remove this one to make it anew",
        )


def _same_limit(account: Mapping[str, Any], options: PrepareOptions) -> bool:
    """Whether the limit of time would do the same: where no page was given up, any does."""
    return "given_up" not in account or bool(account["given_up"]["page_seconds"] == options.page_seconds)


def _awaits_publishing(made: Path, made_of: dict[str, Any], options: PrepareOptions) -> bool:
    """Whether a run that was stopped while it moved the finished corpus made the one requested now."""
    if not (made / "corpus.json").is_file():
        return False
    account = files.read_json(made / "corpus.json")
    return bool(account["made_of"] == made_of) and _same_limit(account, options)


@contextmanager
def _held(options: PrepareOptions, out: Path) -> Iterator[None]:
    """Holds the corpus folder for this run. In a folder that is refused, not even a lock is left."""
    _check_free(out)
    with held(options.array_task, out):
        _check_free(out)
        yield


def _check_free(out: Path) -> None:
    """Raises BertsmithError where the folder holds no corpus but what is not ours."""
    if not out.is_dir() or (out / "corpus.json").is_file():
        return
    ours = {".lock", WORK, *(PUBLISHED if (out / WORK).is_dir() else ())}
    with files.disk_errors(out):
        foreign = sorted(entry.name for entry in out.iterdir() if entry.name not in ours)
    if foreign and not (out / "corpus.json").is_file():  # which another task may have moved there meanwhile
        what = f"this folder is not empty and holds no corpus ({first_of(foreign)})"
        raise BertsmithError(what, out, "give a new or empty folder with --out")


def _sweep(work: Path) -> None:
    """Removes what killed workers left half written."""
    for pattern in (".*.part", "*/.*.part"):
        for leftover in work.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _tell(corpus: Corpus) -> None:
    parts = []
    for split in ("train", "held_out"):
        documents, tokens, shards = corpus.documents(split), corpus.tokens(split), len(corpus.shards(split))
        parts.append(f"{split} {counted(documents, 'document')}, {tokens:,} tokens, {counted(shards, 'shard')}")
    say(f"corpus: {corpus.folder}: {'; '.join(parts)}")
    if corpus.doubt:
        pages = corpus.account["given_up"]["pages"]
        warn(f"this corpus is {corpus.doubt}: {first_of(pages, 3)}")
    options = corpus.account["made_of"]["options"]
    held_out, training = corpus.documents("held_out"), corpus.documents("train")
    documents = held_out + training
    if held_out and not training:
        with_what = other_split("a lower --held-out", documents, options["documents"])
        warn(f"all documents ({documents:,}) are held out, and none is left to train on; prepare with {with_what}")
    elif options["held_out"] and held_out < 2:
        with_what = other_split("a larger --held-out", documents, options["documents"])
        warn(f"too few documents are held out to evaluate on ({held_out} of {documents:,}); prepare with {with_what}")
    elif options["held_out"] < 0.5 and corpus.tokens("held_out") > corpus.tokens("train"):
        with_what = other_split("another --held-out", documents, options["documents"])
        warn(f"more text is held out than left to train on, as long documents are; prepare with {with_what}")
