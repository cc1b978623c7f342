"""An even sample of the text of sources, as counted stretches: what vocabularies are trained on and measured with."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, counted, say, size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.engines.local import LocalEngine
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.formats import read_documents
from bertsmith.corpus.sources.kept import keep
from bertsmith.corpus.sources.unpack import plain_bytes
from bertsmith.corpus.stages.clean import plan_parts
from bertsmith.corpus.stages.normalise import clean_text, text_hash
from bertsmith.rows.lines import Slice
from bertsmith.tokens.vocabulary import count_stretches

_PART_BYTES = 4 << 20


@dataclass(frozen=True)
class TextSample:
    """stretches: without spaces, with their counts. bytes: of cleaned text. share: of all documents."""

    stretches: Counter[str]
    bytes: int
    share: float

    def said(self) -> str:
        """The text of the sample, in words."""
        return f"{size(self.bytes)} of text" + (f" (an even sample, {self.share:.1%})" if self.share < 1 else "")


@dataclass(frozen=True)
class SampleTask:
    """Slices to read, and the share of their documents that is counted."""

    slices: tuple[Slice, ...]
    options: ReadOptions
    share: float

    def __str__(self) -> str:
        return f"counting {', '.join(part.name for part in self.slices[:3])}"


def count_part(task: SampleTask) -> dict[str, Any]:
    """The counted stretches of the sampled documents, their bytes, and the account of what was read."""
    account, texts, size_bytes = Account(), list[str](), 0
    for part in task.slices:
        for document in read_documents(part, task.options, account):
            account.read(len(document.text.encode()))
            text = clean_text(document.text, document.id, account.changed)
            raw = text.encode()
            # A hash of the text decides, so the sample is the same in whatever order and parts it is read.
            if text and int.from_bytes(text_hash(raw)[:8], "little") < task.share * 2.0**64:
                texts.append(text)
                size_bytes += len(raw)
    return {"stretches": count_stretches(texts), "bytes": size_bytes, "account": account.to_json()}


def sample_text(
    sources: Sequence[str | Path], options: ReadOptions, most_bytes: int, workers: int | None = None
) -> TextSample:
    """Counts a sample of about `most_bytes` of text, drawn evenly from all documents; copies are not looked for.

    Raises BertsmithError for sources that are missing or hold no text.
    """
    with tempfile.TemporaryDirectory() as folder, LocalEngine(workers) as engine:
        kept, left_out = keep(sources, Path(folder), options.text_field)
        found, _ = find_files(sources, options, kept)  # which says what was skipped
        account, stretches, size_bytes = Account(changed=left_out), Counter[str](), 0
        whole = sum(plain_bytes(file, options.text_field) for file in found)
        share = min(1.0, most_bytes / max(whole, 1))
        tasks = [SampleTask(tuple(slices), options, share) for slices in plan_parts(found, _PART_BYTES)]
        with Progress("counting words", len(tasks), "parts") as progress:
            for result in engine.run(count_part, tasks, lambda number, _: progress.advance(1)):
                stretches.update(result["stretches"])
                size_bytes += result["bytes"]
                account.add(Account.from_json(result["account"]))
    if not stretches:
        what = f"no text was found in {counted(account.documents, 'document')}"
        raise BertsmithError(what, ", ".join(map(str, sources)), "give a source with text in it")
    for line in (*account.dropped.lines(), *account.changed.lines()):
        say(f"  {line}")
    return TextSample(stretches, size_bytes, share)
