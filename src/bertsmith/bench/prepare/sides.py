"""The cases of `bench prepare`: a side loads what it needs, then works."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertsmith.bench.measure import CaseSpec, Work, serve_cases

_ROWS = 1000


def _ours(spec: CaseSpec) -> Work:
    from bertsmith.base import log
    from bertsmith.corpus.options import PrepareOptions
    from bertsmith.corpus.prepare import prepare
    from bertsmith.corpus.shards import SPLITS

    log.configure()

    def work() -> dict[str, Any]:
        options = PrepareOptions(documents="line", **spec.options)
        corpus = prepare(spec.source, spec.out, tokenizer=spec.tokenizer, options=options)
        read = corpus.counts["read"]
        tokens = sum(corpus.tokens(split) for split in SPLITS)
        return {"text_bytes": read["bytes"], "documents": read["documents"], "tokens": tokens}

    return work


def _nvidia(spec: CaseSpec) -> Work:
    import sentencex

    from bertsmith.bench.prepare.nvidia import Pieces, read_documents, write_instances

    tokenizer = _python_tokenizer(spec.tokenizer / "vocab.txt")
    ids = tokenizer.get_vocab()
    pieces = Pieces(ids["[CLS]"], ids["[SEP]"], ids["[MASK]"], len(ids))

    def encode(sentence: str) -> list[int]:
        return list(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence)))

    def work() -> dict[str, Any]:
        documents, text_bytes = read_documents(spec.source, lambda text: sentencex.segment("en", text), encode)
        count = len(documents)
        tokens = write_instances(documents, spec.out, spec.options["length"], pieces)
        return {"text_bytes": text_bytes, "documents": count, "tokens": tokens}

    return work


def _python_tokenizer(vocabulary: Path) -> Any:
    """transformers' tokenizer in pure Python, under the name that it has in the release that is installed."""
    kind: Any
    try:
        from transformers.models.bert import tokenization_bert_legacy

        kind = tokenization_bert_legacy.BertTokenizerLegacy
    except ImportError:  # before transformers 5
        from transformers import BertTokenizer

        kind = BertTokenizer
    return kind(str(vocabulary))


def _tokenizers(spec: CaseSpec) -> Work:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(spec.tokenizer / "tokenizer.json"))
    kind = np.uint16 if tokenizer.get_vocab_size() <= 65_535 else np.uint32

    def work() -> dict[str, Any]:
        text_bytes = documents = tokens = 0
        with open(spec.out / "tokens.bin", "wb") as out:
            for texts in _batches(spec.source):
                text_bytes += sum(len(text.encode()) for text in texts)
                documents += len(texts)
                for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                    ids = np.array(encoding.ids, kind)
                    tokens += len(ids)
                    out.write(ids.data)
        return {"text_bytes": text_bytes, "documents": documents, "tokens": tokens}

    return work


def _batches(source: Path) -> Iterator[list[str]]:
    """The documents of a text, a line each, some at a time."""
    with open(source, encoding="utf-8", newline="\n") as file:
        lines = (line.removesuffix("\n") for line in file)
        while texts := list(itertools.islice(lines, _ROWS)):
            yield texts


def _datasets(spec: CaseSpec) -> Work:
    """As transformers' run_mlm example does it without line_by_line: tokenise, join, cut into rows of one length."""
    import pyarrow.compute
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(spec.tokenizer))
    length = spec.options["length"]

    def tokenise(rows: dict[str, list[str]]) -> Any:
        return tokenizer(rows["text"], return_special_tokens_mask=True)

    def group(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [each for row in values for each in row] for name, values in rows.items()}
        whole = len(next(iter(joined.values()))) // length * length
        return {name: [values[at : at + length] for at in range(0, whole, length)] for name, values in joined.items()}

    def work() -> dict[str, Any]:
        tokenizer.model_max_length = sys.maxsize  # rows are cut by `group`, so a long document is no mistake
        raw = load_dataset("text", data_files=str(spec.source), split="train")
        rows = raw.map(tokenise, batched=True, remove_columns=["text"])
        grouped = rows.map(group, batched=True)
        lengths = pyarrow.compute.binary_length(raw.data.column("text"))
        text_bytes = pyarrow.compute.sum(lengths).as_py()
        return {"text_bytes": text_bytes, "documents": len(raw), "tokens": length * len(grouped)}

    return work


SIDES: dict[str, Callable[[CaseSpec], Work]] = {
    "ours": _ours,
    "nvidia": _nvidia,
    "tokenizers": _tokenizers,
    "datasets": _datasets,
}


if __name__ == "__main__":
    serve_cases(SIDES)
