"""The pages of tasks, from rows to answers over HTTP: their commands as they stand, and what they show of the output.

Everything runs in this process, the servers too, since each start of one would take longer than all that a page does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pydoc_data.topics
import re
import shlex
import shutil
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from bertsmith.cli import main
from made_entities import tagged_rows
from made_pages import page, typed_here, write_lines, write_table
from made_pairs import pairs, scored_pairs
from made_questions import questions
from made_rows import CONFIG, made_model, rows

PORT = "8080"
MODEL = "all-MiniLM-L6-v2"
Rows = list[dict[str, Any]]


def named(made: Rows, *names: str) -> Rows:
    """Rows with these labels in place of praise and blame, in turn where there are more."""
    both: dict[str, Iterator[str]] = {"praise": cycle(names[::2]), "blame": cycle(names[1::2])}
    return [{**row, "label": next(both[row["label"]])} for row in made]


def paired(made: Rows) -> Rows:
    return [{"text": row["text"], "text_b": row["text"], "label": row["label"]} for row in made]


def chosen(made: Rows, count: int) -> Rows:
    """Rows of multiple choice: one of the words of praise and blame, and others."""
    words = ["lovely", "awful", "word1", "word2"][:count]
    listed = {f"choice{number}": word for number, word in enumerate(words)}
    return [{"text": row["text"], **listed, "label": int(row["label"] == "blame")} for row in made]


def conll(path: Path, made: Rows) -> None:
    """Sentences as a word a line with its tag, of persons and locations."""
    sentences = ["".join(f"{word}\t{tag}\n" for word, tag in zip(*row.values(), strict=True)) for row in made]
    text = "\n".join(sentences).replace("-praise", "-person").replace("-blame", "-location")
    path.write_text(text, encoding="utf-8")


def texts(made: Rows, *columns: str) -> Rows:
    return [{name: row[name] for name in columns or ("text",)} for row in made]


def classification(folder: Path) -> None:
    for name, made in (("reviews", rows(80, 1)), ("reviews-test", rows(20, 2))):
        write_table(folder / f"{name}.csv", named(made, "positive", "negative"))
    write_table(folder / "new-reviews.csv", texts(rows(3, 3)))


def several_labels(folder: Path) -> None:
    labels = ("location", "person;product", "location;person", "product", "group;corporation", "creative-work")
    for name, made in (("posts", rows(80, 1)), ("posts-test", rows(20, 2))):
        write_table(folder / f"{name}.csv", named(made, *labels))
    write_table(folder / "new-posts.csv", texts(rows(2, 3)))


def sentence_pairs(folder: Path) -> None:
    for name, made in (("reports", rows(80, 1)), ("reports-test", rows(20, 2))):
        write_table(folder / f"{name}.csv", paired(named(made, "same", "different")))
    write_table(folder / "new-reports.csv", texts(paired(rows(2, 3)), "text", "text_b"))


def numbers(folder: Path) -> None:
    for name, count in (("similar", 80), ("similar-test", 40)):
        write_table(folder / f"{name}.csv", scored_pairs(count, count))
    write_table(folder / "new-pairs.csv", texts(scored_pairs(2, 3), "text", "text_b"))


def tagging(folder: Path) -> None:
    for name, count in (("posts", 80), ("posts-dev", 20), ("posts-test", 20)):
        conll(folder / f"{name}.conll", tagged_rows(count, count))
    write_lines(folder / "new-posts.jsonl", [{"text": " ".join(row["tokens"])} for row in tagged_rows(2, 3)])


def question_answering(folder: Path) -> None:
    for name, count in (("questions", 60), ("questions-dev", 12)):
        write_lines(folder / f"{name}.jsonl", texts(questions(count, count), "question", "context", "answers"))
    write_lines(folder / "new-questions.jsonl", texts(questions(1, 3), "question", "context"))


def multiple_choice(folder: Path) -> None:
    for name, count in (("endings", 40), ("endings-dev", 20), ("endings-test", 20)):
        write_table(folder / f"{name}.csv", chosen(rows(count, count), 4))
    write_table(folder / "new-endings.csv", texts(chosen(rows(1, 3), 3), "text", "choice0", "choice1", "choice2"))


def embeddings(folder: Path) -> None:
    write_table(folder / "alike.csv", pairs(64, 1))
    write_table(folder / "similar-test.csv", scored_pairs(40, 2))
    write_table(folder / "texts.csv", texts(rows(3, 3)))
    write_table(folder / "new-pairs.csv", texts(scored_pairs(2, 3), "text", "text_b"))


def masked_words(folder: Path) -> None:
    documents = sorted(pydoc_data.topics.topics.items())
    long = [{"title": title, "text": text} for title, text in documents if len(text) > 5000]
    write_table(folder / "articles.csv", long)
    write_table(folder / "gaps.csv", [{"text": "the [MASK] of a class"}])
    write_table(folder / "notes.csv", [{"text": "the name of a class"}])


PAGES: dict[str, Callable[[Path], None]] = {
    "classification.md": classification,
    "several-labels.md": several_labels,
    "sentence-pairs.md": sentence_pairs,
    "numbers.md": numbers,
    "tagging.md": tagging,
    "question-answering.md": question_answering,
    "multiple-choice.md": multiple_choice,
    "embeddings.md": embeddings,
    "masked-words.md": masked_words,
}
# What is made small: pre-training takes no encoder that is there already.
SIZES = {
    "--vocabulary-size 8192": "--vocabulary-size 512 --held-out 0.3",
    "--phase1.steps 5000": "--phase1.steps 3 --phase1.global_batch 8 --evaluate-every 1 --model.layers 1",
}


def commands(block: str) -> list[str]:
    for size, small in SIZES.items():
        block = block.replace(size, small)
    return [line for line in block.replace("\\\n", " ").splitlines() if line]


def said_by(command: str) -> str:
    """What a command prints on either output."""
    done = typed_here(command)
    return done.stdout + done.stderr


def served_here(command: str, asked: list[str]) -> list[str]:
    """What these commands print while this process serves by that one, on a free port in place of the page's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    printed: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
                break
        if over.is_set():
            return
        try:
            printed.extend(said_by(each.replace(PORT, port)) for each in asked)
        finally:
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert main([*shlex.split(command)[1:], "--port", port]) == 143
    finally:
        over.set()
        asking.join()
    assert len(printed) == len(asked)
    return printed


def outputs(text: str) -> list[tuple[str, str]]:
    """The blocks of commands of a page, each with the output that is shown below it, or ""."""
    return re.findall(r"^```sh\n(.*?)^```$(?:\n\n```(?:text|json)\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)


def shape(line: str) -> str:
    """A line without its numbers, and with one space where a table has several."""
    return " ".join(re.sub(r"-?\d[\d.,]*", "0", line).split())


def alike(shown: Any, found: Any) -> bool:
    """Whether two values of JSON have the same fields and kinds of values; of lists the first ones are compared."""
    if isinstance(shown, dict) and isinstance(found, dict):
        return shown.keys() == found.keys() and all(alike(shown[name], found[name]) for name in shown)
    if isinstance(shown, list) and isinstance(found, list):
        return not shown or not found or alike(shown[0], found[0])
    numbers = (int, float)
    return type(shown) is type(found) or (isinstance(shown, numbers) and isinstance(found, numbers))


def is_printed(line: str, printed: str) -> bool:
    """Whether a line of a page, or as much of it as the page shows, stands in an output, but for numbers, and for the
    values of JSON."""
    if line.startswith(("{", "[")):
        found = [json.loads(each) for each in printed.splitlines() if each.startswith(("{", "["))]
        return any(alike(json.loads(line), each) for each in found)
    begin, cut, _ = line.partition("...")
    shapes = map(shape, printed.splitlines())
    return any(each.startswith(shape(begin)) for each in shapes) if cut else shape(line) in shapes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder in place of the one that the pages name."""
    return made_model(tmp_path_factory.mktemp("encoder"), replace(CONFIG, max_position_embeddings=512))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_leads_from_rows_to_answers(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("curl") is None or sys.platform == "win32":
        pytest.skip("there is no curl, or no signal that would stop a server politely")
    PAGES[name](tmp_path)
    (tmp_path / MODEL).symlink_to(model)
    monkeypatch.chdir(tmp_path)
    found = outputs(page(name))
    verbs = [command.split()[1] for block, _ in found for command in commands(block) if command.startswith("bertsmith")]
    trained = {"prepare", "pretrain"} if PAGES[name] is masked_words else {"finetune", "evaluate"}
    assert {*trained, "predict", "serve"} <= set(verbs)
    serve = ""
    for block, shown in found:
        if block.startswith("bertsmith serve "):
            (serve,) = commands(block)
            continue
        asked = commands(block)
        if asked[0].startswith("curl "):
            printed = "\n".join(served_here(serve, asked))
        else:
            printed = "\n".join(map(said_by, asked))
        missing = [line for line in shown.splitlines() if not is_printed(line, printed)]
        assert not missing, printed
    if importlib.util.find_spec("matplotlib") is not None:
        made = {path.stem for path in tmp_path.glob("runs/*/report/*/*.png")}
        assert set(re.findall(r"\(pictures/\w+-(\w+)\.png\)", page(name))) <= {*made, "page"}
