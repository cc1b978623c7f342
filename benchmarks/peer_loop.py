"""The other side of `finetune_peer.py`: a plain training loop around the classes of `transformers`.

Nothing here is Bertsmith's. Rows are encoded as the references do, batches are padded to their longest row, AdamW has
the settings of the table under a linear warm-up and decay, and the model is scored after the last epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peer_questions import questions
from peer_tasks import PeerTask, Rows
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

Feature = dict[str, Any]
_IGNORED = -100
_EVALUATION_BATCH = 32
_AT_ONCE = 8


@dataclass
class Side:
    """A task as the loop sees it. train, dev: features. score: of the outputs for the dev features, in their order."""

    auto: Any
    train: list[Feature]
    dev: list[Feature]
    score: Callable[[list[tuple[np.ndarray, ...]]], dict[str, float]]
    options: dict[str, Any] = field(default_factory=dict)


def run(task: PeerTask, train: Rows, dev: Rows, seed: int, folder: Path) -> dict[str, float]:
    """Every metric on the dev rows after the last epoch."""
    side, model = started(task, train, dev, seed, folder)
    _train(model, side.train, task, seed)
    return side.score(_outputs(model, side.dev))


def started(task: PeerTask, train: Rows, dev: Rows, seed: int, folder: Path) -> tuple[Side, Any]:
    """The task and the model before its first step, whose last two parameters are the head."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    side = _SIDES[task.kind](task, tokenizer, train, dev)
    return side, side.auto.from_pretrained(folder, **side.options)


def orders(features: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """The places of the features in the order of each epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield torch.randperm(features, generator=generator).tolist()


def _train(model: Any, features: list[Feature], task: PeerTask, seed: int) -> None:
    plain = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if not name.endswith(plain)], "weight_decay": task.weight_decay},
        {"params": [p for name, p in named if name.endswith(plain)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=task.learning_rate, eps=task.epsilon)
    steps = task.epochs * -(-len(features) // task.batch)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(task.warmup * steps), steps)
    model.train()
    for places in orders(len(features), task.epochs, seed):
        for start in range(0, len(places), task.batch):
            _backward(model, [features[place] for place in places[start : start + task.batch]])
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.max_gradient_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def _backward(model: Any, batch: list[Feature]) -> None:
    """Of the batch's mean loss. Rows of like lengths go through together, a few at once: this saves padding, and the
    parts' means, weighted by what they are means of, sum to that of the batch. Questions go through whole: transformers
    takes their softmax over the padding too."""
    rows = sorted(batch, key=_length)
    at_once = _AT_ONCE if "labels" in batch[0] else len(batch)
    parts = [_collate(rows[start : start + at_once]) for start in range(0, len(rows), at_once)]
    counts = [_labels(part) for part in parts]
    for part, count in zip(parts, counts, strict=True):
        if not count:  # its mean would be no number
            continue
        (model(**part).loss * (count / sum(counts))).backward()


def _labels(batch: dict[str, torch.Tensor]) -> int:
    """How many losses the model takes the mean of: one for each row or, in tagging, for each labelled token."""
    return int((batch["labels"] != _IGNORED).sum()) if "labels" in batch else len(batch["input_ids"])


@torch.no_grad()
def _outputs(model: Any, features: list[Feature]) -> list[tuple[np.ndarray, ...]]:
    """The logits of each feature, without padding, in their order."""
    model.eval()
    order = sorted(range(len(features)), key=lambda place: _length(features[place]))
    found: list[tuple[np.ndarray, ...]] = [()] * len(features)
    for start in range(0, len(order), _EVALUATION_BATCH):
        members = order[start : start + _EVALUATION_BATCH]
        batch = _collate([{k: v for k, v in features[each].items() if k in _INPUTS} for each in members])
        outputs = model(**batch)
        heads = [outputs.logits] if "logits" in outputs else [outputs.start_logits, outputs.end_logits]
        for row, member in enumerate(members):
            found[member] = tuple(head[row].float().numpy() for head in heads)
    return found


_INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def _length(feature: Feature) -> int:
    ids = feature["input_ids"]
    return max(map(len, ids)) if isinstance(ids[0], list) else len(ids)


def _collate(features: list[Feature]) -> dict[str, torch.Tensor]:
    longest = max(map(_length, features))

    def padded(values: Any, filler: int) -> Any:
        if isinstance(values[0], list):
            return [padded(each, filler) for each in values]
        return values + [filler] * (longest - len(values))

    batch = {}
    for name in features[0]:
        if name == "offsets":
            continue
        values = [each[name] for each in features]
        filler = _IGNORED if name == "labels" else 0
        ready = [padded(each, filler) if isinstance(each, list) else each for each in values]
        batch[name] = torch.tensor(ready)
    return batch


def _pairs(tokenizer: Any, rows: Rows, length: int) -> list[Feature]:
    texts = [[row["text"] for row in rows]]
    if "text_b" in rows[0]:
        texts.append([row["text_b"] for row in rows])
    found = tokenizer(*texts, truncation=True, max_length=length)
    return [{name: found[name][place] for name in _INPUTS} for place in range(len(rows))]


def _classify(task: PeerTask, tokenizer: Any, train: Rows, dev: Rows) -> Side:
    names = sorted({row["label"] for row in train})
    true = np.array([names.index(row["label"]) for row in dev])
    encoded = _pairs(tokenizer, train, task.max_length)
    ready = [one | {"labels": names.index(row["label"])} for one, row in zip(encoded, train, strict=True)]

    def score(outputs: list[tuple[np.ndarray, ...]]) -> dict[str, float]:
        predicted = np.array([logits.argmax() for (logits,) in outputs])
        found = {
            "accuracy": accuracy_score(true, predicted),
            "matthews": matthews_corrcoef(true, predicted),
            "macro_f1": f1_score(true, predicted, average="macro"),
        }
        return found | ({"binary_f1": f1_score(true, predicted)} if len(names) == 2 else {})

    auto = transformers.AutoModelForSequenceClassification
    return Side(auto, ready, _pairs(tokenizer, dev, task.max_length), score, {"num_labels": len(names)})


def _regress(task: PeerTask, tokenizer: Any, train: Rows, dev: Rows) -> Side:
    encoded = _pairs(tokenizer, train, task.max_length)
    ready = [one | {"labels": float(row["label"])} for one, row in zip(encoded, train, strict=True)]
    true = np.array([row["label"] for row in dev])

    def score(outputs: list[tuple[np.ndarray, ...]]) -> dict[str, float]:
        predicted = np.array([logits[0] for (logits,) in outputs])
        return {"pearson": pearsonr(predicted, true)[0], "spearman": spearmanr(predicted, true)[0]}

    options = {"num_labels": 1, "problem_type": "regression"}
    dev_features = _pairs(tokenizer, dev, task.max_length)
    return Side(transformers.AutoModelForSequenceClassification, ready, dev_features, score, options)


def _choice(task: PeerTask, tokenizer: Any, train: Rows, dev: Rows) -> Side:
    def features(rows: Rows, labelled: bool) -> Iterator[Feature]:
        for row in rows:
            prompts = [row["text"]] * len(row["choices"])
            found = tokenizer(prompts, row["choices"], truncation=True, max_length=task.max_length)
            yield {name: found[name] for name in _INPUTS} | ({"labels": int(row["label"])} if labelled else {})

    true = [int(row["label"]) for row in dev]

    def score(outputs: list[tuple[np.ndarray, ...]]) -> dict[str, float]:
        return {"accuracy": accuracy_score(true, [logits.argmax() for (logits,) in outputs])}

    auto = transformers.AutoModelForMultipleChoice
    return Side(auto, list(features(train, True)), list(features(dev, False)), score)


def _tag(task: PeerTask, tokenizer: Any, train: Rows, dev: Rows) -> Side:
    names = sorted({tag for row in train for tag in row["tags"]})

    def encoded(row: dict[str, Any]) -> tuple[Feature, list[int | None]]:
        found = tokenizer(row["tokens"], is_split_into_words=True, truncation=True, max_length=task.max_length)
        words, first = found.word_ids(), list[int | None]()
        for place, word in enumerate(words):
            first.append(word if word is not None and words[place - 1] != word else None)
        return {name: found[name] for name in _INPUTS}, first

    ready = []
    for row in train:
        feature, first = encoded(row)
        labels = [_IGNORED if word is None else names.index(row["tags"][word]) for word in first]
        ready.append(feature | {"labels": labels})
    dev_encoded = [encoded(row) for row in dev]

    def score(outputs: list[tuple[np.ndarray, ...]]) -> dict[str, float]:
        predicted = []
        for row, (_, first), (logits,) in zip(dev, dev_encoded, outputs, strict=True):
            tags = ["O"] * len(row["tags"])
            for place, word in enumerate(first):
                if word is not None:
                    tags[word] = names[logits[place].argmax()]
            predicted.append(tags)
        return {"entity_f1": entity_f1([row["tags"] for row in dev], predicted)}

    auto = transformers.AutoModelForTokenClassification
    return Side(auto, ready, [feature for feature, _ in dev_encoded], score, {"num_labels": len(names)})


def entity_f1(true: list[list[str]], predicted: list[list[str]]) -> float:
    """As conlleval counts: an entity is right where its words and its type are."""
    right = count = 0
    for rows in zip(true, predicted, strict=True):
        t, p = map(entities, rows)
        right, count = right + len(t & p), count + len(t) + len(p)
    return 2 * right / count if count else 0.0


def entities(tags: list[str]) -> set[tuple[int, int, str]]:
    """(first word, word after the last, type) of each entity in BIO tags; I- after another type begins one."""
    found, begin, kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix != "I" or name != kind):
            found.add((begin, place, kind))
            kind = ""
        if name and not kind:
            begin, kind = place, name
    return found


def _questions(task: PeerTask, tokenizer: Any, train: Rows, dev: Rows) -> Side:
    ready, features, score = questions(task, tokenizer, train, dev)
    return Side(transformers.AutoModelForQuestionAnswering, ready, features, score)


_SIDES = {"classify": _classify, "regress": _regress, "choice": _choice, "tag": _tag, "qa": _questions}
