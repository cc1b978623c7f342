"""The verbs of the command line in the order of the river: each reads its flags, calls one function and prints.

Standard output is for what a script wants, such as the path of what was made; everything said on the way goes to
standard error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from bertsmith.base import log
from bertsmith.base.errors import BertsmithError
from bertsmith.recipes.flags import parse_flags, parse_two, split_flags, wants_help
from bertsmith.recipes.loader import FIELDS, load_recipe, presets

# The modules that do the work are imported by the verb that needs them, so that --help is there at once.
T = TypeVar("T")
Options = TypeVar("Options")


@dataclass(frozen=True)
class Call:
    """A verb as it was called. prog: the verb as the user types it. description: what its help begins with."""

    prog: str
    description: str
    args: list[str]

    def read(self, kind: type[T]) -> T:
        """The verb's flags as a dataclass."""
        return parse_flags(kind, self.args, prog=self.prog, description=self.description)

    def read_with(self, kind: type[T], options: Options) -> tuple[T, Options]:
        """The verb's own flags, and those of the fields of `options`, which hold the defaults."""
        return parse_two(kind, options, self.args, prog=self.prog, description=self.description)


@dataclass(frozen=True)
class Verb:
    """A verb of the command line. summary: a line. example: commands as a user would type them."""

    summary: str
    example: str
    run: Callable[[Call], None]

    def description(self) -> str:
        """What its help begins with."""
        everywhere = "Everywhere: --quiet shows warnings only, --debug everything."
        return f"{self.summary}\n\nExample:\n{self.example}\n\n{everywhere}"


@dataclass(frozen=True)
class QuickstartFlags:
    """Flags of `quickstart`."""

    source: tuple[str, ...] = ()
    """Your own text: files, folders or globs. Without it, the documentation that comes with Python."""
    out: Path = Path("runs/quickstart")
    """The folder for everything it makes. Run again, it goes on where it was."""
    budget: Literal["tiny", "normal"] = "normal"
    """tiny ends in seconds, and learns next to nothing; normal takes minutes."""


def _quickstart(call: Call) -> None:
    flags = call.read(QuickstartFlags)
    from bertsmith.quickstart import quickstart

    quickstart(flags.source, flags.out, flags.budget)


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

    corpus = prepare(flags.source, flags.out, tokenizer=flags.tokenizer, options=options)
    log.say(f"look at it with: bertsmith inspect {corpus.folder}")
    print(corpus.folder)


@dataclass(frozen=True)
class CorpusFlags:
    """Flags of `verify`."""

    corpus: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """A folder that `bertsmith prepare` wrote."""


@dataclass(frozen=True)
class InspectFlags:
    """Flags of `inspect`."""

    corpus: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """A folder that `bertsmith prepare` wrote."""
    samples: int = 3
    """How many instances are shown as the model will see them."""
    sequence_length: int = 128
    """The sequence length of these, special pieces included."""
    png: Path | None = None
    """Also draw how long the documents are into this file."""


def _inspect(call: Call) -> None:
    flags = call.read(InspectFlags)
    from bertsmith.batches.samples import show_instances
    from bertsmith.corpus.histogram import draw_lengths
    from bertsmith.corpus.report import inspect
    from bertsmith.corpus.shards import Corpus

    if flags.samples < 0:
        raise BertsmithError(f"--samples is {flags.samples}", call.prog, "use a number from 0")
    corpus = Corpus.open(flags.corpus)
    report = [inspect(corpus)]
    if flags.samples:
        report += ["", show_instances(corpus, flags.samples, flags.sequence_length)]
    if flags.png is not None:
        draw_lengths(corpus, flags.png)
        log.say(f"lengths of documents: {flags.png}")
    print("\n".join(report))


def _verify(call: Call) -> None:
    flags = call.read(CorpusFlags)
    from bertsmith.corpus.shards import Corpus, verify

    corpus = Corpus.open(flags.corpus)
    print(f"all {verify(corpus):,} files of {flags.corpus} are as they were written")
    if corpus.doubt:
        print(corpus.doubt)


@dataclass(frozen=True)
class PretrainFlags:
    """Flags of `pretrain`, beside those of Recipe."""

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """A preset's name or a YAML file."""
    corpus: Path
    """A folder that `bertsmith prepare` wrote."""
    out: Path
    """The run folder; the finished model lies in its `model`."""
    resume: bool = False
    """Go on from the newest checkpoint in the run folder."""
    init_from: Path | None = None
    """Start from the weights of this model folder instead of random ones."""


def _pretrain(call: Call) -> None:
    named = next((token for token in call.args if token in presets()), None)
    overrides, own = split_flags(call.args, FIELDS)
    if wants_help(call.args):  # with the numbers of the preset, where one is named
        own, overrides = ["--help"], {}
    flags, _ = replace(call, args=own).read_with(PretrainFlags, load_recipe(named or "bert-base-nvlamb"))
    recipe = load_recipe(flags.recipe, [f"--{name}={value}" for name, value in overrides.items()])
    from bertsmith.training.pretrain import pretrain

    run = pretrain(recipe, flags.corpus, flags.out, resume=flags.resume, init_from=flags.init_from)
    print(run.model)


@dataclass(frozen=True)
class FinetuneFlags:
    """Flags of `finetune`, beside those of FinetuneSettings."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """classify."""
    model: Path
    """The folder of a pre-trained model."""
    train: Path
    """Labelled rows to learn from: .csv, .tsv or .jsonl."""
    dev: Path
    """Labelled rows to measure with, and to choose the best epoch and seed by."""
    out: Path
    """The folder of the fine-tuned model."""


def _finetune(call: Call) -> None:
    from bertsmith.tasks.settings import FinetuneSettings

    flags, settings = call.read_with(FinetuneFlags, FinetuneSettings())
    from bertsmith.tasks.finetune import finetune

    result = finetune(flags.task, flags.model, flags.train, flags.dev, flags.out, settings=settings)
    print(result.folder)


@dataclass(frozen=True)
class PredictFlags:
    """Flags of `predict`."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """The folder of a fine-tuned model, or of a pre-trained one to fill [MASK] in."""
    input: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
    """Rows as .csv, .tsv or .jsonl; - is standard input."""
    out: str = "-"
    """Where predictions go, in the order of the rows: .jsonl or .csv; - is JSON lines on standard output."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """The dtype of matrix products."""


def _predict(call: Call) -> None:
    flags = call.read(PredictFlags)
    from bertsmith.inference.predict_file import predict_file

    predict_file(flags.model, flags.input, flags.out, device=flags.device, precision=flags.precision)


@dataclass(frozen=True)
class ImportFlags:
    """Flags of `import`."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A TensorFlow checkpoint (its folder, its prefix or its .index file) or NVIDIA's .pt file."""
    out: Path
    """The model folder."""
    vocab: Path | None = None
    """Its vocab.txt, or a tokenizer's folder. Without it, the one beside the checkpoint."""
    config: Path | None = None
    """Its bert_config.json. Without it, the one beside the checkpoint."""
    lowercase: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Text is lower-cased first. Without it and its opposite, the pieces of the vocabulary decide."""
    no_lowercase: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Text keeps its capital letters and accents."""
    activation: Literal["gelu", "gelu_pytorch_tanh", "relu"] | None = None
    """What the model computes: gelu is erf. Without it, the config decides, and its gelu means the tanh form."""


def _import(call: Call) -> None:
    flags = call.read(ImportFlags)
    if flags.lowercase and flags.no_lowercase:
        raise BertsmithError("--lowercase and --no-lowercase exclude each other", call.prog, "give one of them")
    from bertsmith.weights.convert import import_checkpoint

    lowercase = flags.lowercase if flags.lowercase or flags.no_lowercase else None
    found = import_checkpoint(flags.checkpoint, flags.out, flags.vocab, flags.config, lowercase, flags.activation)
    print(found)


@dataclass(frozen=True)
class BenchFlags:
    """Flags of `bench`, beside those of BenchOptions."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """prepare, batches or pretrain-step."""
    json: Path | None = None
    """A file for the rows."""
    markdown: bool = False
    """Print the tables for a page."""


def _bench(call: Call) -> None:
    from bertsmith.base import files
    from bertsmith.bench.run import BenchOptions, run_bench

    flags, options = call.read_with(BenchFlags, BenchOptions())
    report = run_bench(flags.name, options, [*call.prog.split(), *call.args])
    if flags.json:
        files.write_json(flags.json, report.as_json())
    print(report.as_markdown() if flags.markdown else report.as_text())


VERBS = {
    "quickstart": Verb(
        "The whole river in minutes, on a CPU: text, vocabulary, corpus, pre-training, fine-tuning, predictions.",
        "  bertsmith quickstart\n  bertsmith quickstart --source my_texts --out runs/mine",
        _quickstart,
    ),
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
        "  bertsmith inspect corpus",
        _inspect,
    ),
    "verify": Verb("Compare every file of a corpus with its checksum.", "  bertsmith verify corpus", _verify),
    "pretrain": Verb(
        "Pre-train a BERT from a recipe; every field of the recipe is a flag.\n\nPresets:\n"
        + "\n".join(f"  {name:<20}{text}" for name, text in presets().items()),
        "  bertsmith pretrain bert-mini --corpus corpus --out runs/mini --phase1.steps 2000\n"
        "  bertsmith pretrain bert-mini --help        the numbers of that preset",
        _pretrain,
    ),
    "finetune": Verb(
        "Fine-tune a model on labelled rows.",
        "  bertsmith finetune classify --model runs/mini/model --train train.csv --dev dev.csv --out runs/labels",
        _finetune,
    ),
    "predict": Verb(
        "Predict labels, or the words behind [MASK], for the rows of a file, in their order.",
        "  bertsmith predict runs/labels new.csv --out predictions.jsonl",
        _predict,
    ),
    "import": Verb(
        "Make a model folder of a TensorFlow checkpoint of Google's, or of NVIDIA's .pt file; needs no TensorFlow.",
        "  bertsmith import uncased_L-12_H-768_A-12 --out bert-base\n"
        "  bertsmith import ckpt_8601.pt --config bert_config.json --vocab vocab.txt --out bert-large",
        _import,
    ),
    "bench": Verb(
        "Measure preparation, batches or a training step beside others, each case in a process of its own.",
        "  bertsmith bench prepare --source my_texts --json prepare.json\n  bertsmith bench batches --corpus corpus\n"
        "  bertsmith bench pretrain-step --against transformers",
        _bench,
    ),
}
