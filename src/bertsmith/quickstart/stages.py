"""The stages of the quickstart, one after the other; each is left out when it was finished before."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import check_utf8, read_json, write_json, write_text
from bertsmith.base.log import as_details, counted, duration, each_warning_once, log_choice, logger, say, size
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.corpus.sources import python_docs
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.kept import PYTHON_DOCS
from bertsmith.quickstart.figures import Figure, classifier_figures, pretraining_figures, table
from bertsmith.quickstart.labels import Labelled, RowCounts, Unlabelled, rows_of_docstrings, rows_of_sources
from bertsmith.quickstart.samples import guess_masked_words, show_classes, show_masked_words
from bertsmith.recipes.loader import load_recipe
from bertsmith.tasks.finetune import finetune
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.records.curves import draw_curves

SAMPLE_SENTENCES = 20
SHOWN = 4
"""Of the sample predictions; all of them under --debug."""
HELD_OUT_DOCUMENTS = 40
"""With fewer held-out documents the bounds would move with a handful of them."""
# Documents are held out by their hash, so their number varies by its square root: this many are expected.
_EXPECTED_HELD_OUT = 55
# Of few documents a fifth is held out, or about four, if these are at most half of them.
_LARGEST_SHARE, _FEWEST_HELD_OUT = 0.2, 4


@dataclass(frozen=True)
class Budget:
    """What a quickstart spends. prepare: options of `prepare`. overrides: of the recipe `quickstart`."""

    prepare: PrepareOptions
    overrides: tuple[str, ...]
    finetune: FinetuneSettings
    rows: RowCounts


_EXPECTED = {"normal": "three to eight minutes", "tiny": "less than a minute"}
BUDGETS = {
    "normal": Budget(
        PrepareOptions(vocabulary_size=4096, held_out=0.04, sample_bytes=8_000_000),
        (),
        FinetuneSettings(
            epochs=2, batch=16, learning_rate=2e-4, seeds=3, dropout=0.0, attention_dropout=0.0, max_length=96
        ),
        RowCounts(1000, 500, train_of_label=100),
    ),
    "tiny": Budget(
        PrepareOptions(vocabulary_size=1024, held_out=0.02, sample_bytes=1_000_000),
        (
            *("--model.layers", "2", "--model.hidden", "64", "--model.heads", "2", "--model.intermediate", "256"),
            *("--phase1.steps", "20", "--phase1.global_batch", "16", "--phase2.steps", "4"),
            *("--phase2.global_batch", "4", "--evaluate_instances", "64"),
        ),
        FinetuneSettings(epochs=1, batch=32, learning_rate=5e-4, seeds=2, max_length=64),
        RowCounts(200, 100),
    ),
}


class Quickstart:
    """One quickstart in its folder. `stages.json` holds the line and the figures of every finished stage."""

    def __init__(self, sources: Sequence[str], out: Path, budget: Budget) -> None:
        self.sources, self.out, self.budget = list(sources) or [PYTHON_DOCS], out, budget
        self.own_text = self.sources != [PYTHON_DOCS]
        if self.own_text:
            _ = self.prepare_options  # a source that cannot be read is refused before a folder is made
        self._stages_path = out / "stages.json"
        self._stages: dict[str, dict[str, Any]] = {}
        self._claim()

    @cached_property
    def prepare_options(self) -> PrepareOptions:
        """The budget's, with a share of held-out documents. Raises BertsmithError for a source that cannot be read."""
        options = self.budget.prepare
        with as_details():
            documents = self._count_documents()
        if documents is None:
            return options
        share = max(min(_EXPECTED_HELD_OUT / documents, _LARGEST_SHARE), _FEWEST_HELD_OUT / documents)
        if not options.held_out < share <= 0.5:
            return options
        if self.own_text:
            log_choice("held-out share", f"{share:.1%}", f"there are {documents} documents")
        return replace(options, held_out=share)

    def _count_documents(self) -> int | None:
        """The number of documents, None if only reading the files would tell."""
        if not self.own_text:
            return sum(1 for _ in python_docs.collect().documents())
        found, _ = find_files(self.sources, self.budget.prepare.reading)
        return len(found) if all(file.kind == "file" for file in found) else None

    def _claim(self) -> None:
        """Makes the folder ours, or refuses one that belongs to other sources or another budget."""
        check_utf8(self.out)
        identity = {"sources": self.sources, "budget": json.loads(json.dumps(self.budget, default=vars))}
        if self._stages_path.exists():
            self._stages = read_json(self._stages_path, "remove the folder and start again")
            if not isinstance(self._stages, dict) or self._stages.get("identity") != identity:
                raise BertsmithError(
                    "this folder holds a quickstart of other sources, another budget or another version",
                    self.out,
                    "choose another --out, or remove the folder",
                )
        elif self.out.is_file() or (self.out.exists() and any(self.out.iterdir())):
            raise BertsmithError("this folder holds something else", self.out, "choose a new folder by --out")
        else:
            self._stages = {"identity": identity}
            write_json(self._stages_path, self._stages)

    def stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Runs a stage unless it is finished, and logs a line: what went in, what came out, how long it took."""
        known = self._stages.get(name)
        when = "" if known is None else "finished before, in "
        if known is None:
            start = time.monotonic()
            with as_details():
                known = work()
            known["seconds"] = time.monotonic() - start
            self._stages[name] = known
            write_json(self._stages_path, self._stages)
        say(f"== {name}: {known['summary']}; {when}{duration(known['seconds'])}")
        return known

    def prepare(self) -> dict[str, Any]:
        """Raw text to token shards."""
        corpus = prepare(self.sources, self.out / "corpus", options=self.prepare_options)
        read, kept = corpus.counts["read"], corpus.counts["kept"]
        return {
            "summary": f"{size(read['bytes'])} in {counted(read['documents'], 'document')}, "
            f"{read['documents'] - kept['documents']:,} dropped -> {corpus.special.vocabulary_size:,} pieces, "
            f"{corpus.tokens('train'):,} tokens in {counted(corpus.documents('train'), 'document')}, "
            f"{corpus.tokens('held_out'):,} in {corpus.documents('held_out'):,} held out"
        }

    @property
    def corpus(self) -> Corpus:
        return Corpus.open(self.out / "corpus")

    @property
    def run(self) -> Run:
        return Run(self.out / "pretrained")

    def pretrain(self) -> dict[str, Any]:
        """Both phases, resumed where an earlier call ended."""
        recipe = load_recipe("quickstart", self.budget.overrides)
        run = pretrain(recipe, self.corpus, self.run.folder, resume=True)
        draw_curves(run.metrics(), self.out / "curves.png")
        train, end = run.metrics("train"), run.metrics("end")[0]
        rate = sum(each["tokens"] for each in train) / sum(each["seconds_per_step"] * each["steps"] for each in train)
        return {
            "summary": f"{end['step']:,} steps on {end['tokens']:,.0f} tokens at {rate:,.0f} tokens/s -> {run.model}",
            "figures": [each.as_record() for final in run.metrics("final")[:1] for each in pretraining_figures(final)],
        }

    def label(self) -> dict[str, Any]:
        """Rows for a classifier, from the text itself."""
        seed = self.budget.finetune.seed
        rows: Labelled | Unlabelled
        if self.own_text:
            rows = rows_of_sources(self.sources, self.budget.prepare.reading, self.budget.rows, seed)
        else:
            rows = rows_of_docstrings(self.budget.rows, seed)
        if isinstance(rows, Unlabelled):
            return {"summary": f"no classifier is trained: {rows.reason}", "rows": 0}
        for name, part in (("train", rows.train), ("dev", rows.dev)):
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
            write_text(self.out / "classifier" / f"{name}.jsonl", text)
        labels = len({row["label"] for row in rows.train})
        summary = (
            f"{len(rows.train):,} rows to train on, {len(rows.dev):,} to evaluate on, {labels} classes; {rows.rule}"
        )
        return {"summary": f"{rows.question} {summary}", "rows": len(rows.train), "question": rows.question}

    def finetune(self, from_scratch: bool) -> dict[str, Any]:
        """The classifier, from the pre-trained model; or the same network with the same rows and seeds, from random
        weights, which is the control and is not kept."""
        settings = replace(self.budget.finetune, from_scratch=from_scratch)
        rows = self.out / "classifier"
        train, dev, out = rows / "train.jsonl", rows / "dev.jsonl", None if from_scratch else rows
        result = finetune("classify", self.run.model, train, dev, out, settings=settings, resume=out is not None)
        return {"summary": result.line(), "scores": result.scores, "majority": result.baseline}

    def predict(self) -> dict[str, Any]:
        """Masked words of held-out sentences, with the best five guesses."""
        guesses = guess_masked_words(self.corpus, self.run.model, SAMPLE_SENTENCES)
        right = sum(each["true"] == each["guesses"][0] for each in guesses)
        among = sum(each["true"] in each["guesses"] for each in guesses)
        summary = f"{len(guesses)} held-out sentences with a masked word: {right} right, {among} among the best five"
        return {"summary": summary, "guesses": guesses}


def quickstart(sources: Sequence[str], out: str | Path, budget: Literal["tiny", "normal"] = "normal") -> list[Figure]:
    """Runs everything from text to predictions and prints what was learned.

    sources: files, folders or globs; none for the documentation that comes with Python. out: a folder for everything;
    called again, finished stages are not repeated. Returns the figures of the table.
    Raises BertsmithError for sources that cannot be read and a folder that belongs to something else.
    """
    start = time.monotonic()
    work = Quickstart([str(each) for each in sources], Path(out), BUDGETS[budget])
    say(f"quickstart into {out}: {_EXPECTED[budget]} on two cores; add --debug to see every message on the way")
    work.stage("prepare", work.prepare)
    trained = work.stage("pre-train", work.pretrain)
    labelled = work.stage("label", work.label)
    figures = [Figure(**{name: each[name] for name in each if name != "reached"}) for each in trained["figures"]]
    if labelled["rows"]:
        with each_warning_once():  # both read the same rows, of which each would say the same
            tuned = work.stage("fine-tune", lambda: work.finetune(from_scratch=False))
            control = work.stage("control", lambda: work.finetune(from_scratch=True))
        figures += classifier_figures(tuned["scores"], control["scores"], tuned["majority"])
    samples = work.stage("predict", work.predict)
    everything = logger.isEnabledFor(logging.DEBUG)
    if samples["guesses"]:
        print(show_masked_words(samples["guesses"][: None if everything else SHOWN]))
    if labelled["rows"]:
        rows = work.out / "classifier"
        with as_details():
            print(show_classes(rows / "model", rows / "dev.jsonl", SAMPLE_SENTENCES if everything else SHOWN))
    write_json(work.out / "figures.json", [each.as_record() for each in figures])
    if figures:
        print(table(figures))
    print(_ending(work, budget, figures, bool(labelled["rows"]), time.monotonic() - start))
    return figures


def _ending(work: Quickstart, budget: str, figures: Sequence[Figure], classified: bool, seconds: float) -> str:
    held_out = work.corpus.documents("held_out")
    missed = sum(not each.reached for each in figures)
    if not held_out:
        verdict = "No document was held out, so what the encoder learned was not measured: give it more documents."
    elif budget == "tiny":
        verdict = "The tiny budget shows that everything runs; it learns next to nothing, and is not expected to."
    elif missed:
        verdict = f"{missed} of {len(figures)} bounds were not reached: the curves show what training did."
    else:
        verdict = "Every bound was reached: the encoder has learned from this text."
    if 0 < held_out < HELD_OUT_DOCUMENTS:
        verdict += (
            f" The figures are of only {counted(held_out, 'held-out document')}, so others may give other figures."
        )
    rows = work.out / "classifier"
    tries = [
        f"bertsmith inspect {work.out / 'corpus'}",
        f"bertsmith predict {rows / 'model'} {rows / 'dev.jsonl'} --out {rows / 'predictions.jsonl'}"
        if classified
        else f"bertsmith pretrain bert-mini --corpus {work.out / 'corpus'} --out runs/mini",
        *([] if work.own_text else ["bertsmith quickstart --source YOUR_TEXTS --out runs/mine"]),
    ]
    paths = [
        ("model folder", work.run.model),
        ("metrics", work.run.folder / "metrics.jsonl"),
        *([("curves", work.out / "curves.png")] if (work.out / "curves.png").exists() else []),
        ("figures", work.out / "figures.json"),
    ]
    lines = [f"\n{verdict} ({duration(seconds)})", *(f"{name + ':':14}{path}" for name, path in paths), "Try next:"]
    return "\n".join([*lines, *(f"  {each}" for each in tries)])
