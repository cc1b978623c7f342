"""A scalar reference of Google's pair construction and masking, one token at a time, fed a Python `Random`.

Its draws are in the order of Google's code. It writes each one down, so that ours can be given the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from bertsmith.tokens.special_ids import SpecialIds


@dataclass
class GoogleInstance:
    """What one instance looks like to the model. hidden: places by what stood there."""

    tokens: list[int]
    segments: list[int]
    original: list[int]
    hidden: dict[int, int]
    label: int
    candidate_order: list[int]
    actions: dict[int, tuple[float, int]]


@dataclass
class GoogleReference:
    """documents: lists of sentences, which are lists of ids."""

    documents: list[list[list[int]]]
    sequence_length: int
    special: SpecialIds
    rng: random.Random
    random_next: float = 0.5
    short_sequences: float = 0.1
    drawn: list[tuple[str, Any]] = field(default_factory=list)

    def uniform(self) -> float:
        value = self.rng.random()
        self.drawn.append(("uniform", value))
        return value

    def integer(self, low: int, high: int) -> int:
        value = self.rng.randint(low, high)
        self.drawn.append(("integer", (low, high, value)))
        return value

    def instances(self) -> list[GoogleInstance]:
        return [instance for number in range(len(self.documents)) for instance in self.of_document(number)]

    def of_document(self, number: int) -> list[GoogleInstance]:
        document, made = self.documents[number], []
        most = self.sequence_length - 3
        target = self.integer(2, most) if self.uniform() < self.short_sequences else most
        chunk: list[list[int]] = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                a_end = self.integer(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                a = [token for sentence in chunk[:a_end] for token in sentence]
                label = 0
                if len(chunk) == 1 or self.uniform() < self.random_next:
                    other = number
                    for _ in range(10):
                        other = self.integer(0, len(self.documents) - 1)
                        if other != number:
                            break
                    label = 0 if other == number else 1  # NVIDIA's rule
                    b: list[int] = []
                    for sentence in self.documents[other][self.integer(0, len(self.documents[other]) - 1) :]:
                        b.extend(sentence)
                        if len(b) >= target - len(a):
                            break
                    i -= len(chunk) - a_end
                else:
                    b = [token for sentence in chunk[a_end:] for token in sentence]
                self.truncate(a, b, most)
                made.append(self.masked(a, b, label))
                chunk = []
            i += 1
        return made

    def truncate(self, a: list[int], b: list[int], most: int) -> None:
        tosses = []
        while len(a) + len(b) > most:
            longer = a if len(a) > len(b) else b
            tosses.append(self.rng.random() < 0.5)
            longer.pop(0 if tosses[-1] else -1)
        if tosses:
            self.drawn.append(("tosses", tosses))

    def masked(self, a: list[int], b: list[int], label: int) -> GoogleInstance:
        special = self.special
        original = [special.cls, *a, special.sep, *b, special.sep]
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        candidates = [place for place, token in enumerate(original) if token not in (special.cls, special.sep)]
        self.rng.shuffle(candidates)
        count = min(20 * self.sequence_length // 128, max(1, round(len(original) * 0.15)))
        tokens, actions = list(original), {}
        for place in candidates[:count]:
            if self.rng.random() < 0.8:
                tokens[place], actions[place] = special.mask, (0.4, 0)
            elif self.rng.random() < 0.5:
                actions[place] = (0.95, 0)
            else:
                tokens[place] = self.rng.randint(0, special.vocabulary_size - 1)
                actions[place] = (0.85, tokens[place])
        hidden = {place: original[place] for place in sorted(candidates[:count])}
        return GoogleInstance(tokens, segments, original, hidden, label, candidates, actions)


@dataclass
class Replay:
    """Gives the draws that a reference wrote down, and insists that they are asked for in its order."""

    drawn: list[tuple[str, Any]]
    next: int = 0

    def uniform(self) -> float:
        value = self._take("uniform")
        assert isinstance(value, float)
        return value

    def integer(self, low: int, high: int) -> int:
        wanted_low, wanted_high, value = self._take("integer")
        assert (low, high) == (wanted_low, wanted_high)
        return int(value)

    def tosses(self, count: int) -> int:
        tosses = self._take("tosses")
        assert isinstance(tosses, list)
        assert len(tosses) == count
        return sum(1 << place for place, front in enumerate(tosses) if front)

    def _take(self, kind: str) -> Any:
        found, value = self.drawn[self.next]
        assert found == kind, f"draw {self.next} is a {found} for Google, a {kind} for us"
        self.next += 1
        return value
