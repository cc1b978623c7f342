"""SQuAD's JSON: questions about the paragraphs of articles, with the spans that answer them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.rows.json_lines import RepeatedKey, each_once

TRUTHS = {"true": True, "1": True, "1.0": True, "yes": True, "false": False, "0": False, "0.0": False, "no": False}
"""What tools that write texts write for what is true or false, in small letters."""


Report = Callable[[str, str, Any], None]
"""Is given what is left out: its place in the JSON, such as data[3].paragraphs[0], what it is, and what is there."""


@dataclass(frozen=True)
class Question:
    """where: its place in the JSON. answers: as the file has them; None where it says nothing. is_impossible: whether
    it says so, or has an empty list of answers."""

    where: str
    id: Any
    text: str
    answers: Any
    is_impossible: bool


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of an article."""

    title: str
    context: str
    questions: list[Question]


def parse_json(raw: bytes, name: str, strict: bool = False) -> Any:
    """A whole file of JSON in UTF-8. Raises BertsmithError that names line and byte where it is broken. strict: also
    where an object has a key twice; without it, the last value counts."""
    try:
        text = raw.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=each_once if strict else None)
    except RepeatedKey as error:
        what = f"an object of this file has the key '{error}' twice"
        raise BertsmithError(what, name, "give each key once") from error
    except UnicodeDecodeError as error:
        line, byte, what = raw.count(b"\n", 0, error.start) + 1, error.start, f"not UTF-8 ({error.reason})"
    except json.JSONDecodeError as error:
        line, byte, what = error.lineno, len(error.doc[: error.pos].encode()), f"not JSON ({error.msg})"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or nested too deeply
        line, byte, what = 1, 0, f"not JSON ({error})"
    raise BertsmithError(f"this file is {what}", f"{name}:{line}, byte {byte:,}", "correct it, or copy it again")


def is_squad(value: Any) -> bool:
    """Whether JSON has SQuAD's outermost layers."""
    articles = value.get("data") if isinstance(value, dict) else None
    return isinstance(articles, list) and any(isinstance(each, dict) and "paragraphs" in each for each in articles)


def paragraphs(value: Any, report: Report) -> Iterator[Paragraph]:
    """The paragraphs of what `is_squad` is true of, in the order of the file. report: is given articles, paragraphs and
    questions that are not as in SQuAD, and are left out."""
    for number, article in enumerate(value["data"]):
        where = f"data[{number}]"
        listed = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(listed, list):
            report(where, "an article without paragraphs", article)
            continue
        for place, each in enumerate(listed):
            where = f"data[{number}].paragraphs[{place}]"
            try:
                context, asked = _text(each, "context"), each.get("qas", [])
                if not isinstance(asked, list):
                    raise ValueError("'qas' holds no list")
            except ValueError as error:
                report(where, f"a paragraph that is not as in SQuAD ({error})", each)
            else:
                questions = list(_questions(asked, where, report))
                yield Paragraph(str(article.get("title", "")), context, questions)


def _questions(asked: list[Any], paragraph: str, report: Report) -> Iterator[Question]:
    for place, value in enumerate(asked):
        where = f"{paragraph}.qas[{place}]"
        try:
            # Of SQuAD 2.0, `plausible_answers` are those that a question without an answer only seems to have.
            text, listed = _text(value, "question"), value.get("answers")
            said = is_true(value.get("is_impossible"), "is_impossible")
        except ValueError as error:
            report(where, f"a question that is not as in SQuAD ({error})", value)
        else:
            answers = [] if listed is None and said else listed
            yield Question(where, value.get("id"), text, answers, answers == [] if said is None else said)


def is_true(value: Any, name: str) -> bool | None:
    """What a value says that is true or false, as JSON and tables write it; None of an empty one. ValueError for any
    other."""
    held = "" if value is None else str(value).strip().lower()
    if held and held not in TRUTHS:
        raise ValueError(f"'{name}' holds {value!r}; give true or false")
    return TRUTHS.get(held)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        raise ValueError(f"'{field}' holds no text")
    return str(value[field])
