"""Questions that can be learned: the answer is the one word of praise or blame in the context, or there is none."""

from __future__ import annotations

import random
from typing import Any

from bertsmith.tasks.settings import FinetuneSettings
from made_rows import WORDS

QUICK = FinetuneSettings(
    epochs=8, learning_rate=5e-3, batch=16, max_length=32, doc_stride=8, dropout=0.0, attention_dropout=0.0,
    device="cpu", precision="fp32",
)  # fmt: skip


def questions(count: int, seed: int, unanswerable: float = 0.0, longest: int = 20) -> list[dict[str, Any]]:
    """Rows in the shape of SQuAD's. unanswerable: the share whose context has none."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        words = draw.choices(WORDS, k=draw.randrange(4, longest))
        answers = []
        if draw.random() >= unanswerable:
            place = draw.randrange(1, len(words))
            answer = draw.choice(["lovely", "awful", "lovely awful"])
            words.insert(place, answer)
            answers = [{"text": answer, "answer_start": len(" ".join([*words[:place], ""]))}]
        made.append(
            {
                "id": f"question {number}",
                "question": f"what is {draw.choice(WORDS)}",
                "context": " ".join(words),
                "answers": answers,
                "is_impossible": not answers,
            }
        )
    return made


def squad(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows as SQuAD's JSON, a paragraph each."""
    asked = [{name: row[name] for name in ("id", "question", "answers", "is_impossible")} for row in rows]
    paragraphs = [{"context": row["context"], "qas": [each]} for row, each in zip(rows, asked, strict=True)]
    return {"version": "v2.0", "data": [{"title": "Made", "paragraphs": paragraphs}]}
