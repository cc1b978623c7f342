"""The augmented rows of a run with a teacher: made once, kept in the run folder, and the same when it is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bertsmith.base import files, ranks
from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.base.ranks.together import together
from bertsmith.model.config import BertConfig
from bertsmith.tasks.distilling.augment import Made, Making, Proposer, make_rows
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.kinds.masked_words import MaskedWords, WordModel
from bertsmith.tasks.registry import answering, architecture_of
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.task import Runner
from bertsmith.training.run_folder import model_identity
from bertsmith.weights.huggingface import CONFIG_FILE, load_model, model_folder, read_config

AUGMENTED_FILE = "augmented.jsonl"
"""In a run folder: a line for each augmented row, with the number of the training row that it is made of, from 0."""
_UNFINISHED_FILE = "augmented.unfinished.jsonl"
"""What a run that is making rows has so far: a line for what they are made of and with, then one for each few rows."""
_FACT = "augmented"
_OF_TEXTS = ("classify", "regress")


def check_augmented(work: Work) -> None:
    """Raises BertsmithError where rows are to be made of a task whose rows have more than texts, and for a model that
    proposes no words."""
    if work.distilled is None or work.distilled.settings.augment_model is None:
        return
    if work.task.kind not in _OF_TEXTS:
        what = f"words of {work.task.kind} rows are not replaced: their labels are places in the text, or texts"
        raise BertsmithError(what, "augment", f"leave it out; it is for {' and '.join(_OF_TEXTS)}")
    folder = model_folder(Path(work.distilled.settings.augment_model))
    read_config(folder)
    values = files.read_json(folder / CONFIG_FILE)
    if answering(values) is not MaskedWords:
        what = f"this model has no masked-word head: it holds {architecture_of(values)}"
        raise BertsmithError(what, folder, "name a run of `bertsmith pretrain`, or a folder of a masked-word model")


def with_augmented(work: Work, run: Path, device: Device, started_on: Mapping[str, str]) -> tuple[Work, dict[str, str]]:
    """The work with augmented rows after the training rows, and what `RunFacts.started_on` records of them.

    started_on: of the run that is resumed, {} for a new one. Ranks share the making, and all get all rows. Raises
    BertsmithError where a resumed run would get other rows than it had.
    """
    if work.distilled is None or not work.distilled.settings.augment:
        return work, {}
    path, known = run / AUGMENTED_FILE, started_on.get(_FACT)
    text = ranks.by_first(partial(_kept, path, known))
    if text is None:
        text = _made(work, device, run / _UNFINISHED_FILE)
        ranks.by_first(partial(files.write_text, path, text))
        ranks.by_first(lambda: (run / _UNFINISHED_FILE).unlink(missing_ok=True))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    if known not in (None, checksum):
        what = "the augmented rows of this run are missing or changed, and making them again gives other ones"
        raise BertsmithError(what, path, "put the file back, or start again in another folder")
    originals = work.parts["train"]
    records = [
        replace(originals.records[each["row"]], text=each["text"], text_b=each["text_b"], id=None)
        for each in map(json.loads, text.split("\n")[:-1])  # a text may hold what `splitlines` splits at
    ]
    named = [replace(each, where=f"{each.where} (augmented row {number})") for number, each in enumerate(records, 1)]
    examples = replace(
        work.examples([*originals.records, *named]), part=originals.part, originals=len(originals.targets)
    )
    cut = examples.sequences.truncated_of(slice(len(originals.records), None))
    lost = f"{cut.rows:,} of them truncated, {cut.tokens:,} tokens lost"
    say(f"train: {len(named):,} augmented rows beside {len(originals.records):,}, {lost}; {path}")
    return replace(work, parts={**work.parts, "train": examples}), {_FACT: checksum}


def _kept(path: Path, checksum: str | None) -> str | None:
    """The lines that a resumed run had; None where they are to be made."""
    if checksum is None or not path.is_file() or files.sha256(path) != checksum:
        return None
    return path.read_text(encoding="utf-8")


def _made(work: Work, device: Device, unfinished: Path) -> str:
    """The lines of the file, some of which a killed run may have made."""
    assert work.distilled is not None
    settings = work.distilled.settings
    folder = model_folder(Path(settings.augment_model or ""))
    config = together(partial(read_config, folder))
    proposer = together(partial(_proposer, folder, config, device, settings.micro_batch_tokens))
    longest = min(work.max_length, config.max_position_embeddings)
    making = Making(settings.augment, settings.augment_share, settings.augment_top, settings.seed, longest)
    records = work.parts["train"].records
    say(f"making rows with proposals of {folder}")
    texts = [(each.text, each.text_b) for each in records]
    how = [asdict(making), model_identity(folder, "model"), str(device.torch_device.type), str(device.compute), texts]
    checksum = hashlib.sha256(json.dumps(how).encode()).hexdigest()
    known = ranks.by_first(partial(_unfinished, unfinished, checksum))
    if known:
        say(f"rows of the first {max(known):,} were made before this run was ended; {unfinished}")
    made = make_rows(records, proposer, making, known, partial(_keep, unfinished))
    say(made.line(len(records)))
    rows = ({"row": row, "text": text, "text_b": text_b} for row, text, text_b in made.rows)
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows)


def _unfinished(path: Path, checksum: str) -> dict[int, Made]:
    """What was made before, by the number of the next record; {} for a file of other rows, which is started anew."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []  # the last may be cut off
    same = bool(lines) and lines[0] == checksum
    files.write_text(path, "".join(f"{line}\n" for line in (lines if same else [checksum])))
    known = {}
    for each in map(json.loads, lines[1:] if same else []):
        rows = [(row, text, text_b) for row, text, text_b in each["made"].pop("rows")]
        known[each["end"]] = Made(rows, **each["made"])
    return known


def _keep(path: Path, end: int, made: Made) -> None:
    with files.disk_errors(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"end": end, "made": asdict(made)}) + "\n")


def _proposer(folder: Path, config: BertConfig, device: Device, micro_batch_tokens: int) -> Proposer:
    model = load_model(lambda shape: WordModel(shape, device.compute), folder, MaskedWords.may_be_fresh)
    runner = Runner(device.torch_device, micro_batch_tokens)
    return Proposer(model.to(device.torch_device), load_tokenizer(folder, config), runner)
