"""The stages of a preparation, one after the other, in the work folder of a corpus."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, counted, duration, first_of, log_choice, say, size, warn
from bertsmith.base.tally import Entry, Tally
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import DocumentRule
from bertsmith.corpus.engines.local import Engine
from bertsmith.corpus.engines.parts import fingerprint, make_once, part_folder
from bertsmith.corpus.filters.searches import Searches, Selection
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.reading import NOT_UTF8
from bertsmith.corpus.shards import SPLITS, ShardInfo
from bertsmith.corpus.sources.find import SourceFile, stamp_of
from bertsmith.corpus.sources.unpack import unpack_where_needed
from bertsmith.corpus.stages.assemble import ShardTask, assemble_shard, plan_shards
from bertsmith.corpus.stages.clean import TIMES_AS_LONG, CleanTask, clean_again, clean_part, plan_parts
from bertsmith.corpus.stages.publish import put_together
from bertsmith.corpus.stages.tokenise import (
    UNKNOWN_WORDS,
    TextTask,
    TokensTask,
    WordsTask,
    count_part_words,
    tokenise_part,
)
from bertsmith.corpus.stages.totals import corpus_account, kept_accounts
from bertsmith.corpus.vocabulary_report import warn_of_letters, warn_of_unknown
from bertsmith.corpus.wiki.dumps import CUT_SHORT
from bertsmith.corpus.wiki.dumps import DAMAGED as DUMP_DAMAGED
from bertsmith.corpus.wiki.page_time import why_polled
from bertsmith.rows.lines import CUT_OFF, DAMAGED
from bertsmith.rows.parquet import DAMAGED_GROUPS
from bertsmith.tokens.bulk_ids import choose_library
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import rounded_size, share_without_rows, train_on_counts

Task = TypeVar("Task")
# Below this, a file of plain text was probably meant as many documents.
_FEW_DOCUMENTS = 20
# Of the text: in words that are too long for WordPiece.
_LOST_SHARE = 0.01
_CHANGED = "files that changed while they were read"


@dataclass(frozen=True)
class _Cleaned:
    """What the first stages leave to the others."""

    tasks: list[CleanTask]
    account: Account
    text_bytes: int
    part_bytes: list[int]
    selection: Selection


class Pipeline:
    """Makes `work/corpus`, the finished corpus folder, by `engine`. made_of: what corpus.json keeps of its making."""

    def __init__(self, work: Path, options: PrepareOptions, engine: Engine, made_of: dict[str, Any]) -> None:
        self._work, self._options, self._engine, self._made_of = work, options, engine, made_of

    def run(self, found: Sequence[SourceFile], passed: Tally, tokenizer: Tokenizer | None) -> None:
        """All stages. passed: files that were skipped, for the account. Raises BertsmithError."""
        account = Account(changed=passed)
        reading, part_bytes = self._options.reading, self._options.part_bytes
        unpacked, faults = unpack_where_needed(found, self._work, reading, part_bytes, self._engine)
        account.changed.add(faults)
        cleaned = self._clean(unpacked, account)
        self._tell_changed(found, account)
        tokenizer = self._save(tokenizer) if tokenizer else self._train(cleaned)
        library = choose_library(tokenizer)
        tasks, results = self._tokenise(cleaned, tokenizer, library)
        shards = self._assemble(tasks, results)
        listed = {split: [info for _, info in made] for split, made in shards.items()}
        accounts = kept_accounts(task.folder for task in tasks)
        values = corpus_account(self._made_of, cleaned.account, accounts, listed, tokenizer)
        values["tokenizer"]["ids_by"] = library
        values["searches"] = cleaned.selection.account
        values["reproducible"] = not cleaned.account.slow
        if cleaned.account.slow:
            seconds = self._options.page_seconds
            given_up = {"page_seconds": seconds, "at_last": TIMES_AS_LONG * seconds, "pages": cleaned.account.slow}
            values["given_up"] = given_up

        def make() -> None:
            unigrams = np.zeros(tokenizer.size, np.int64)
            for task in tasks:
                unigrams += np.load(task.folder / "unigrams.npy", allow_pickle=False)
            put_together(self._work / "corpus", values, shards, tokenizer, unigrams)

        self._engine.once("corpus", make)

    def _stage(
        self, what: str, function: Callable[[Task], dict[str, Any]], tasks: Sequence[Task], weights: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Runs one stage with a progress bar over the bytes of its parts."""
        with Progress(what, sum(weights), "B") as progress:
            return self._engine.run(function, tasks, lambda number, _: progress.advance(weights[number]))

    def _clean(self, found: Sequence[SourceFile], account: Account) -> _Cleaned:
        started = time.monotonic()
        tasks = self._clean_tasks(found)
        weights = [sum((each.end or os.path.getsize(each.path)) - each.begin for each in task.slices) for task in tasks]
        results = self._stage("reading and cleaning", clean_part, tasks, weights)
        results = [
            self._again(task, each["slow"]) if "slow" in each else each
            for task, each in zip(tasks, results, strict=True)
        ]
        for kept in kept_accounts(task.folder for task in tasks):
            account.add(Account.from_json(kept))
        _tell_lost(account)
        documents, text_bytes = (sum(result[name] for result in results) for name in ("documents", "bytes"))
        self._refuse_nothing(account, documents)
        whole = fingerprint([task.made_of for task in tasks], account.slow)
        broken, part_bytes = account.dropped.count, [result["bytes"] for result in results]
        why = ", ".join(f"{entry.count:,} {what}" for what, entry in account.dropped.items())
        searches = Searches(self._work, self._engine, self._stage, self._options.filters)
        selection = searches.run([task.folder for task in tasks], part_bytes, documents, whole)
        account.dropped.add(selection.dropped)
        account.changed.add(selection.changed)
        drops = self._options.exclude and self._options.exclude_action == "drop"
        say(
            f"documents: {account.documents:,} read ({size(account.bytes)} of text), "
            f"{why or '0 empty, short or broken'}, {counted(account.dropped.count - broken, 'duplicate')}"
            f"{' or with evaluation text' if drops else ''}; {duration(time.monotonic() - started)}"
        )
        self._refuse_nothing(account, account.documents - account.dropped.count)
        return _Cleaned(tasks, account, text_bytes, part_bytes, selection)

    def _tell_changed(self, found: Sequence[SourceFile], account: Account) -> None:
        """Counts and names files that are other ones now than when they were found."""
        for file in found:
            if not Path(file.path).is_relative_to(self._work) and stamp_of(file.path) != file.stamp:
                account.changed.note(_CHANGED, example=file.name)
        if entry := account.changed.get(_CHANGED):
            where = ", ".join(entry.examples)
            warn(
                f"{_CHANGED}: {entry.count:,} ({where}); the corpus may hold parts of both: prepare it in a new folder"
            )

    def _refuse_nothing(self, account: Account, left: int) -> None:
        """Raises BertsmithError where no document is left."""
        if left <= 0:
            reasons = "; ".join(account.dropped.lines())
            what = f"no document is left of {account.documents:,} read ({reasons or 'there was none'})"
            fix = f"{'correct what is counted there, or ' if reasons else ''}give a source with more text in it"
            raise BertsmithError(what, ", ".join(self._made_of["sources"]), fix)

    def _clean_tasks(self, found: Sequence[SourceFile]) -> list[CleanTask]:
        stamps, tasks = {file.path: file.stamp for file in found}, []
        reading, shortest = self._options.reading, self._options.min_characters
        for number, slices in enumerate(plan_parts(found, self._options.part_bytes)):
            listed = [[vars(part), stamps[part.path]] for part in slices]
            made_of = fingerprint(self._made_of["version"], listed, reading.deciding(), shortest)
            folder = part_folder(self._work / "cleaned", number)
            tasks.append(CleanTask(folder, made_of, tuple(slices), reading, shortest))
        if any(file.kind == "mediawiki" for file in found) and (why := why_polled()):
            log_choice("time a page may take", "looked at between paragraphs only", why)
        return tasks

    def _again(self, task: CleanTask, pages: Sequence[str]) -> dict[str, Any]:
        """Makes a part that was set aside for its slow pages, by itself, with ten times the limit."""
        seconds = self._options.page_seconds
        say(
            f"slow pages: {len(pages):,} took more than {duration(seconds)} of CPU time ({first_of(pages, 3)}); "
            f"their part is made again alone, with {duration(TIMES_AS_LONG * seconds)} a page"
        )
        return self._engine.run(clean_again, [task])[0]

    def _texts(self, stage: str, cleaned: _Cleaned, *made_of: Any) -> list[TextTask]:
        """A task a cleaned part, for a stage whose parts are also made of `made_of`."""
        share = self._options.held_out
        return [
            TextTask(
                self._work / stage / task.folder.name,
                fingerprint(cleaned.selection.fingerprint, number, share, made_of),
                number,
                task.folder,
                cleaned.selection.kept[number],
                share,
            )
            for number, task in enumerate(cleaned.tasks)
        ]

    def _train(self, cleaned: _Cleaned) -> Tokenizer:
        started = time.monotonic()
        options = self._options
        share = min(1.0, options.sample_bytes / max(cleaned.text_bytes, 1))
        texts = self._texts("words", cleaned, share, options.lowercase)
        tasks = [WordsTask(**vars(text), share=share, lowercase=options.lowercase) for text in texts]
        results = self._stage("counting words", count_part_words, tasks, cleaned.part_bytes)
        sample_bytes = sum(result["bytes"] for result in results)
        if share == 1.0 and not sample_bytes:
            documents = cleaned.account.documents - cleaned.account.dropped.count
            what = f"all documents ({documents:,}) are held out, and no text is left to train a vocabulary on"
            fix = f"prepare with {other_split('a lower --held-out', documents, options.documents)}"
            raise BertsmithError(what, ", ".join(self._made_of["sources"]), fix)
        left_out = Tally()
        for result in results:
            left_out.add(Tally.from_json(result["left_out"]))
        cleaned.account.changed.add(left_out)

        def make(folder: Path) -> dict[str, Any]:
            words: Counter[str] = Counter()
            for text in texts:
                words.update(json.loads((text.folder / "words.json").read_text(encoding="utf-8")))
            trained = train_on_counts(words, options.vocabulary_size, options.lowercase)
            trained.save(folder)
            return {"without_rows": share_without_rows(words, trained)}

        made_of = fingerprint([text.made_of for text in texts], rounded_size(options.vocabulary_size))
        self._engine.once("vocabulary", lambda: make_once(self._work / "tokenizer", made_of, make))
        # Another task of an array may have made it: this reads what `make` returned there.
        made = make_once(self._work / "tokenizer", made_of, make)
        tokenizer = Tokenizer.load(self._work / "tokenizer")
        unused = sum(piece.startswith("[unused") for piece in tokenizer.pieces)
        casing = "lower-cased" if options.lowercase else "cased"
        say(
            f"vocabulary: no tokenizer was given, so {tokenizer.size:,} pieces ({unused:,} of them unused) were "
            f"trained on {size(sample_bytes)} of text, {casing}; {duration(time.monotonic() - started)}"
        )
        for line in left_out.lines():
            say(f"  {line}")
        warn_of_letters(made["without_rows"], "--vocabulary-size")
        return tokenizer

    def _save(self, tokenizer: Tokenizer) -> Tokenizer:
        def make(folder: Path) -> dict[str, Any]:
            tokenizer.save(folder)
            return {}

        self._engine.once("vocabulary", lambda: make_once(self._work / "tokenizer", tokenizer.sha256, make))
        return tokenizer

    def _tokenise(
        self, cleaned: _Cleaned, tokenizer: Tokenizer, library: str
    ) -> tuple[list[TokensTask], list[dict[str, Any]]]:
        started = time.monotonic()
        texts = self._texts("tokens", cleaned, tokenizer.sha256, self._options.language)
        folder, language = self._work / "tokenizer", self._options.language
        tasks = [
            TokensTask(
                **vars(text), tokenizer=folder, tokenizer_sha256=tokenizer.sha256, language=language, library=library
            )
            for text in texts
        ]
        results = self._stage("sentences and tokens", tokenise_part, tasks, cleaned.part_bytes)
        tokens = sum(count for result in results for count in result["tokens"].values())
        words, unknown = (sum(result[name] for result in results) for name in ("words", "unknown"))
        say(
            f"tokens: {tokens:,}, {tokens / max(words, 1):.3f} pieces a word, {unknown / max(tokens, 1):.3%} of them "
            f"[UNK] (`bertsmith vocab` compares vocabularies); {duration(time.monotonic() - started)}"
        )
        too_long = Tally()
        for result in results:
            too_long.add(Tally.from_json(result["too_long"]))
        lost, kept_bytes = too_long.get(UNKNOWN_WORDS, Entry()), sum(result["bytes"] for result in results)
        if self._made_of["tokenizer"] != "trained":
            warn_of_unknown(unknown - lost.count, tokens)
        if lost.bytes > _LOST_SHARE * kept_bytes:
            warn(
                f"{lost.bytes / kept_bytes:.0%} of the text are {UNKNOWN_WORDS} ({', '.join(lost.examples)}); of a "
                "language without spaces, put them between words first, by a tool that knows it"
            )
        return tasks, results

    def _assemble(
        self, parts: Sequence[TokensTask], results: Sequence[dict[str, Any]]
    ) -> dict[str, list[tuple[Path, ShardInfo]]]:
        """The shards of each split with the folder that each was written into."""
        tasks = []
        whole = fingerprint([task.made_of for task in parts], self._options.shard_tokens)
        for split in SPLITS:
            tokens = sum(result["tokens"][split] for result in results)
            folders = [task.folder for task in parts]
            for number, pieces in enumerate(plan_shards(folders, split, tokens, self._options.shard_tokens)):
                folder = self._work / "shards" / f"{split}-{number:05d}"
                tasks.append(ShardTask(folder, fingerprint(whole, split), split, f"{number:05d}", tuple(pieces)))
        infos = self._engine.run(assemble_shard, tasks)
        shards: dict[str, list[tuple[Path, ShardInfo]]] = {split: [] for split in SPLITS}
        for task, info in zip(tasks, infos, strict=True):
            shards[task.split].append((task.folder, ShardInfo(**info)))
        return shards


def _tell_lost(account: Account) -> None:
    """Warns of text that is lost: counted, but easily overlooked."""
    for damage in filter(account.changed.get, (DAMAGED, DUMP_DAMAGED, DAMAGED_GROUPS)):
        entry = account.changed[damage]
        warn(f"{damage}: {entry.count:,} ({', '.join(entry.examples)}); copy them again")
    if cut := account.dropped.get(CUT_SHORT):
        warn(f"{CUT_SHORT}: {cut.count:,} ({', '.join(cut.examples)}), and what followed is missing; copy it again")
    for what, entry in account.changed.items():
        if what.endswith(CUT_OFF):
            where = f"{size(entry.bytes)} are lost ({', '.join(entry.examples)})"
            warn(
                f"{what}: {entry.count:,}; {where}; break them into shorter ones (plain text as by: fold -s -w 100000)"
            )
    if lost := account.changed.get(NOT_UTF8):
        where = ", ".join(lost.examples)
        warn(
            f"{counted(lost.count, 'byte')} not UTF-8 and lost ({where}); convert files of another encoding first, as "
            "by: iconv -f WINDOWS-1252 -t UTF-8 (or GBK, SHIFT_JIS ...), but none that is UTF-8 elsewhere, which would "
            "spoil it"
        )


def other_split(held_out: str, documents: int, rule: DocumentRule) -> str:
    """The options for another split of so many documents. held_out: the change to that flag."""
    if documents < _FEW_DOCUMENTS and rule == "file":
        return f"--documents blank-line or line, where a file of plain text holds many, or {held_out}"
    return held_out
