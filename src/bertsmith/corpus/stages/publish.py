"""The end of a preparation: the folder put together from its shards, synced, and moved into place.

Here, and only here, the disk is waited for: every file of the corpus is on it before corpus.json is, and corpus.json is
moved last. So a folder with a corpus.json holds a whole corpus, even after a power cut.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import files
from bertsmith.corpus.engines.parts import WORK, fingerprint
from bertsmith.corpus.shards import ShardInfo, sealed
from bertsmith.tokens.tokenizer import Tokenizer

PUBLISHED = ("tokenizer", "unigrams.npy", "train", "held_out", "corpus.json")
_OF = ".of"


def put_together(
    out: Path,
    account: Mapping[str, Any],
    shards: Mapping[str, Sequence[tuple[Path, ShardInfo]]],
    tokenizer: Tokenizer,
    unigrams: NDArray[np.int64],
) -> None:
    """Moves the shards of each split out of their parts into `out` and adds the rest; corpus.json comes last.

    Cut short, it may be done again, by another process too. unigrams: int64[V]. Raises BertsmithError when the disk
    refuses.
    """
    with files.disk_errors(out):
        _start_anew(out, fingerprint(dict(account)))
        for split, made in shards.items():
            (out / split).mkdir(exist_ok=True)
            for folder, info in made:
                for name in info.sha256:
                    with suppress(FileNotFoundError):  # moved before this was cut short
                        (folder / name).replace(out / split / name)
                    files.sync(out / split / name)
            files.sync(out / split)
        tokenizer.save(out / "tokenizer")
        files.write_whole(out / "unigrams.npy", lambda file: np.save(file, unigrams))
        for path in (*(out / "tokenizer").iterdir(), out / "tokenizer", out):
            files.sync(path)
    sums = {
        "unigrams_sha256": files.sha256(out / "unigrams.npy"),
        "tokenizer_files": {path.name: files.sha256(path) for path in sorted((out / "tokenizer").iterdir())},
    }
    files.write_json(out / "corpus.json", sealed({**account, **sums}))


def _start_anew(out: Path, made_of: str) -> None:
    """Empties the folder unless what it holds was put together for the same corpus."""
    mark = out / _OF
    if mark.is_file() and mark.read_text(encoding="utf-8") == made_of:
        return
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    mark.write_text(made_of, encoding="utf-8")


def publish(out: Path) -> None:
    """Moves the finished corpus into place, corpus.json last, and removes the work. May be cut short and done again."""
    made = out / WORK / "corpus"
    with files.disk_errors(out):
        for name in PUBLISHED:
            if not (made / name).exists():
                continue
            if name == "corpus.json":
                files.sync(out)
            if (out / name).is_dir():
                shutil.rmtree(out / name)
            (made / name).replace(out / name)
        files.sync(out)
        shutil.rmtree(out / WORK, ignore_errors=True)
