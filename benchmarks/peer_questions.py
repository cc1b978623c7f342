"""SQuAD for the peer's loop: windows, the choice of an answer, and its scores, as in Google's run_squad.py."""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable
from typing import Any

import numpy as np
from peer_tasks import DOC_STRIDE, MAX_ANSWER_LENGTH, MAX_QUERY_LENGTH, N_BEST, PeerTask, Rows

Feature = dict[str, Any]
Outputs = list[tuple[np.ndarray, ...]]


def questions(
    task: PeerTask, tokenizer: Any, train: Rows, dev: Rows
) -> tuple[list[Feature], list[Feature], Callable[[Outputs], dict[str, float]]]:
    """(train features with positions, dev features, their score)."""
    ready = []
    for row in train:
        for window in _windows(task, tokenizer, row):
            start, end = _span(row, window)
            ready.append(window["inputs"] | {"start_positions": start, "end_positions": end})
    windows = [_windows(task, tokenizer, row) for row in dev]
    with_null = any(row["is_impossible"] for row in dev)

    def score(outputs: Outputs) -> dict[str, float]:
        left = iter(outputs)
        exact = overlap = 0.0
        for row, those in zip(dev, windows, strict=True):
            text = _answer(row, [(window, *next(left)) for window in those], with_null)
            golds = [each["text"] for each in row["answers"]] or [""]
            exact += max(float(normalised(text) == normalised(gold)) for gold in golds)
            overlap += max(token_f1(text, gold) for gold in golds)
        return {"exact_match": exact / len(dev), "f1": overlap / len(dev)}

    return ready, [window["inputs"] for those in windows for window in those], score


def _windows(task: PeerTask, tokenizer: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a context that fit beside its question, each beginning DOC_STRIDE tokens after the one before.

    A window has "inputs", "offsets" (characters of each of its context's tokens), "first" (the place of the first of
    them in the sequence) and "best" (whether it has most context around each token).
    """
    query = tokenizer(row["question"], add_special_tokens=False)["input_ids"][:MAX_QUERY_LENGTH]
    context = tokenizer(row["context"], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, offsets = context["input_ids"], context["offset_mapping"]
    room = task.max_length - len(query) - 3
    starts, start = [], 0
    while True:
        starts.append(start)
        if start + room >= len(ids):
            break
        start += min(room, DOC_STRIDE)
    spans = [(start, min(start + room, len(ids))) for start in starts]
    found = []
    for number, (start, end) in enumerate(spans):
        sequence = [tokenizer.cls_token_id, *query, tokenizer.sep_token_id, *ids[start:end], tokenizer.sep_token_id]
        kinds = [0] * (len(query) + 2) + [1] * (end - start + 1)
        inputs = {"input_ids": sequence, "token_type_ids": kinds, "attention_mask": [1] * len(sequence)}
        best = [_most_context(spans, place) == number for place in range(start, end)]
        found.append({"inputs": inputs, "offsets": offsets[start:end], "first": len(query) + 2, "best": best})
    return found


def _most_context(spans: list[tuple[int, int]], place: int) -> int:
    """The window in which a token has most context on its poorer side; the first of equals."""
    around = [
        min(place - start, end - 1 - place) + 0.01 * (end - start) if start <= place < end else -1.0
        for start, end in spans
    ]
    return int(np.argmax(around))


def _span(row: dict[str, Any], window: dict[str, Any]) -> tuple[int, int]:
    """The places of the answer's first and last token; those of [CLS] where there is none in this window."""
    if row["is_impossible"] or not row["answers"]:
        return 0, 0
    answer = row["answers"][0]
    begin, stop = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    inside = [place for place, (left, right) in enumerate(window["offsets"]) if left < stop and right > begin]
    offsets = window["offsets"]
    if not inside or offsets[inside[0]][0] > begin or offsets[inside[-1]][1] < stop:
        return 0, 0
    return inside[0] + window["first"], inside[-1] + window["first"]


def _answer(row: dict[str, Any], windows: list[tuple[Any, np.ndarray, np.ndarray]], with_null: bool) -> str:
    """The best span of all windows, or "" where the score of no answer is higher."""
    best, text, null = -np.inf, "", np.inf
    for window, starts, ends in windows:
        first, count = window["first"], len(window["offsets"])
        null = min(null, float(starts[0] + ends[0]))
        length = len(window["inputs"]["input_ids"])
        for start in np.argsort(-starts[:length], kind="stable")[:N_BEST]:
            for end in np.argsort(-ends[:length], kind="stable")[:N_BEST]:
                left, right = int(start) - first, int(end) - first
                inside = 0 <= left <= right < count and right - left < MAX_ANSWER_LENGTH
                if not inside or not window["best"][left] or starts[start] + ends[end] <= best:
                    continue
                best = float(starts[start] + ends[end])
                text = row["context"][window["offsets"][left][0] : window["offsets"][right][1]]
    return "" if with_null and null > best else text


def normalised(text: str) -> str:
    """As SQuAD's evaluation compares answers: lower case, no punctuation, no articles, single spaces."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def token_f1(text: str, gold: str) -> float:
    """The F1 of the words that two answers share."""
    ours, theirs = normalised(text).split(), normalised(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))
