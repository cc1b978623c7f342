"""The verbs from raw text to a corpus: download, vocab, prepare, inspect, verify."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bertsmith.base import log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.figures import check_figure
from bertsmith.base.stopping import StoppedAfterSaving, stop_on_signals
from bertsmith.cli.verb import Call, Verb, default_said, import_torch


@dataclass(frozen=True)
class DownloadFlags:
    """Flags of `download`, beside those of DownloadOptions."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """What to download. Without it, all there is is listed with size and licence."""
    out: Path = Path("data")
    """The folder below which it goes."""


def _download(call: Call) -> None:
    from bertsmith.download.catalogue import listing
    from bertsmith.download.download import DownloadOptions, download

    flags, options = call.read_with(DownloadFlags, DownloadOptions())
    if not flags.name:
        print(listing())
        return
    for folder in download(flags.name, flags.out, options):
        print(folder)


@dataclass(frozen=True)
class VocabFlags:
    """Flags of `vocab`, beside those of VocabularyOptions."""

    source: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE...")]
    """Files, folders or globs of text; the kind of each is recognised and told."""
    out: Path
    """The tokenizer folder."""


def _vocab(call: Call) -> None:
    from bertsmith.corpus.vocabularies import VocabularyOptions, make_vocabulary

    flags, options = call.read_with(VocabFlags, VocabularyOptions())
    make_vocabulary(flags.source, flags.out, options)
    print(flags.out)


@dataclass(frozen=True)
class PrepareFlags:
    """Flags of `prepare`, beside those of PrepareOptions."""

    source: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE...")]
    """Files, folders or globs of text, or - for standard input; the kind of each is recognised and told."""
    out: Path = Path("corpus")
    """The corpus folder."""
    tokenizer: Path | None = None
    """A tokenizer's folder or a vocab.txt. Without it, a vocabulary is trained on the text."""


def _prepare(call: Call) -> None:
    from bertsmith.corpus.options import PrepareOptions

    flags, options = call.read_with(PrepareFlags, PrepareOptions())
    from bertsmith.corpus.prepare import prepare

    with stop_on_signals("parts that are under way are finished or dropped", at_once=True) as stop:
        try:
            corpus = prepare(flags.source, flags.out, tokenizer=flags.tokenizer, options=options)
        except KeyboardInterrupt:
            what = "stopped; finished parts are kept, and the same command continues from them"
            raise StoppedAfterSaving(what, stop.interrupted) from None
    log.say(f"look at it with: bertsmith inspect {shlex.quote(str(corpus.folder))}")
    print(corpus.folder)


@dataclass(frozen=True)
class CorpusFlags:
    """Flags of `verify`, and of `inspect` with others."""

    corpus: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """A folder that `bertsmith prepare` wrote."""


@dataclass(frozen=True)
class InspectFlags(CorpusFlags):
    """Flags of `inspect`."""

    samples: int = 3
    """How many instances are shown as the model will see them."""
    sequence_length: Annotated[int | None, default_said("128; with --run that of the phase")] = None
    """The sequence length of these, special pieces included."""
    run: Path | None = None
    """A run of pre-training on this corpus: its instances are shown, in place of samples, as it saw them."""
    first_instance: Annotated[int | None, default_said("0")] = None
    """With --run: the number of the first one, as a message of the run has it, without commas."""
    phase: Annotated[int | None, default_said("1")] = None
    """With --run: the phase whose instance that is."""
    png: Path | None = None
    """Also draw how long the documents are into this file."""


def _inspect(call: Call) -> None:
    flags = call.read(InspectFlags)
    from bertsmith.batches.samples import show_instances
    from bertsmith.corpus.histogram import draw_lengths
    from bertsmith.corpus.inspect import inspect
    from bertsmith.corpus.shards import Corpus

    if flags.samples < 0:
        raise BertsmithError(f"--samples is {flags.samples}", call.prog, "use a number from 0")
    if flags.png is not None:
        check_figure(flags.png)
    corpus = Corpus.open(flags.corpus)
    if flags.run is not None:
        import_torch()
        from bertsmith.training.instances import show_instances_of_run

        call.refuse_unread(flags, ("sequence_length", "png"), "with --run")
        first, phase = _or(flags.first_instance, 0), _or(flags.phase, 1)
        print(show_instances_of_run(flags.run, corpus, first, flags.samples, phase))
        return
    call.refuse_unread(flags, ("first_instance", "phase"), "without --run")
    if not flags.samples:
        call.refuse_unread(flags, ("sequence_length",), "with --samples 0")
    report = [inspect(corpus)]
    if flags.samples:
        report += ["", show_instances(corpus, flags.samples, _or(flags.sequence_length, 128))]
    if flags.png is not None:
        draw_lengths(corpus, flags.png)
        log.say(f"lengths of documents: {flags.png}")
    print("\n".join(report))


def _or(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given


def _verify(call: Call) -> None:
    flags = call.read(CorpusFlags)
    from bertsmith.corpus.shards import Corpus, verify

    corpus = Corpus.open(flags.corpus)
    print(f"all {verify(corpus):,} files of {flags.corpus} are as they were written")
    if corpus.doubt:
        print(corpus.doubt)


VERBS = {
    "download": Verb(
        "Public corpora and benchmark data, verified and resumable; without a name, the list of them.",
        "  bertsmith download\n  bertsmith download wikipedia --language de --out data\n"
        "  bertsmith download gutenberg --books 84 1342",
        _download,
    ),
    "vocab": Verb(
        "Train a WordPiece vocabulary, extend one with words of your text, or see how one fits it.",
        "  bertsmith vocab my_texts --out tokenizer --size 30522\n"
        "  bertsmith vocab my_texts --out tokenizer --extend bert-base-uncased/vocab.txt --size 32000",
        _vocab,
    ),
    "prepare": Verb(
        "Turn raw text into a corpus, once for every sequence length, phase, masking and epoch.",
        "  bertsmith prepare my_texts --out corpus",
        _prepare,
    ),
    "inspect": Verb(
        "What a corpus holds, what was dropped and why, and sample rows as the model will see them.",
        "  bertsmith inspect corpus\n  bertsmith inspect corpus --run runs/base --first-instance 4096 --samples 32",
        _inspect,
    ),
    "verify": Verb("Compare every file of a corpus with its checksum.", "  bertsmith verify corpus", _verify),
}
