"""The page of a server in a browser: what it shows for each kind of model, by keyboard, narrow, dark, and safe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.finetune import finetune
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.settings import FinetuneSettings
from made_browser import Page, browsing
from made_questions import QUICK as QUICK_QA
from made_questions import questions
from made_rows import QUICK, made_model, rows
from made_served import Served, made_cross_encoder, serving

TOKEN = "a-token"
ENTER, TAB, RIGHT, END = ("Enter", 13), ("Tab", 9), ("ArrowRight", 39), ("End", 35)
ASKED = {
    "labels": {"text": "lovely word1 word2"},
    "several": {"text": "awful word1"},
    "number": {"text": "lovely word1"},
    "ranks": {"text": "word1 word2", "text_b": "word2 lovely"},
    "scores": {"text": "word1 word2", "text_b": "word2 lovely"},
    "pairs": {"text": "word1 word2", "text_b": "word2 lovely"},
    "tags": {"text": "😀 word3 lovely word0 word5 awful"},
    "answers": {"question": "what is word1", "context": "😀 word2 lovely word3 word4 word5"},
    "choices": {"text": "word1", "choices": "lovely\nawful\nword9"},
    "listed": {"text": "word1", "text_b": "word2", "options": "lovely\nawful word3"},
    "endings": {"text": "word1", "start": "word2 word3", "good": "lovely", "bad": "awful"},
    "two": {"text": "word1 lovely", "other": "word2 awful"},
    "unsaid": {"text": "word1 lovely", "text_b": "word2 awful"},
    "renamed": {"text": "what is word1", "1": "😀 word2 lovely word3 word4 word5"},
    "vectors": {"source": "word1 word2", "other": "word2 word3\nlovely"},
    "masks": {"text": "word1 [MASK] word2"},
}


@pytest.fixture(scope="module")
def models(served_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made, ranks = tmp_path_factory.mktemp("made"), served_models["ranks"]
    activation = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}  # by which sentence-transformers marks pairs
    scores = {
        "scores": made_cross_encoder(ranks, made / "scores"),
        "pairs": made_cross_encoder(ranks, made / "pairs", sentence_transformers=activation),
    }
    unsaid = made / "unsaid"  # as others publish a classifier: nothing says whether it reads pairs
    shutil.copytree(served_models["labels"], unsaid, ignore=shutil.ignore_patterns("task.json"))
    named = finetuned_by_columns(made)
    return {name: (served_models | scores | named | {"unsaid": unsaid})[name] for name in ASKED}


def finetuned_by_columns(folder: Path) -> dict[str, Path]:
    """Models of rows with columns of other names, most of them with a second text."""
    classes = [{**row, "other": "word3 word4"} for row in rows(48, 1)]
    listed = [{"text": row["text"], "text_b": "word2", "options": ["lovely", "awful"], "label": 0} for row in classes]
    endings = [{**row, "start": "word2", "good": "lovely", "bad": "awful", "label": 0} for row in classes]
    asked = [{"text": row["question"], "1": row["context"], "answers": row["answers"]} for row in questions(48, 1)]
    short = replace(QUICK, epochs=2)
    tuned: dict[str, tuple[str, list[dict[str, Any]], Columns, FinetuneSettings]] = {
        "two": ("classify", classes, Columns(text_b="other"), short),
        "listed": ("choice", listed, Columns(choices="options"), short),
        "endings": ("choice", endings, Columns(text_b="start", choices="good,bad"), short),
        "renamed": ("qa", asked, Columns(question="text", context="1"), replace(QUICK_QA, epochs=6, report=False)),
    }
    encoder = made_model(folder / "encoder")
    for name, (task, made, columns, settings) in tuned.items():
        finetune(task, encoder, made[:-8], made[-8:], folder / name, settings=replace(settings, columns=columns))
    return {name: folder / name / "model" for name in tuned}


@pytest.fixture(scope="module")
def served(models: dict[str, Path]) -> Iterator[Served]:
    with serving(models, "--precision", "fp32") as server:
        yield server


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(autouse=True)
def no_problems(page: Page) -> Iterator[None]:
    """The console stays empty: no error, and nothing that the policy had to stop. Nothing is asked of other hosts."""
    page.problems.clear()
    page.requested.clear()
    yield
    assert not page.problems
    assert {urlsplit(each).hostname for each in page.requested} <= {"127.0.0.1"}


def ask(page: Page, name: str, values: dict[str, str]) -> str:
    """Chooses a model, types and asks; gives the text of the result."""
    page.until("document.querySelectorAll('[role=tab]').length > 0")
    place = list(ASKED).index(name)
    page.run(f"document.getElementById('tab-{place}').click()")
    for field, text in values.items():
        page.run(f"document.getElementById('field-{field}').focus()")
        page.run("document.activeElement.select()")
        page.type(text)
    page.run("document.querySelector('#form button').click()")
    page.until(
        "/^Answered/.test(document.querySelector('#status').textContent) || document.querySelector('#status.wrong')"
    )
    return str(page.run("document.getElementById('result').innerText"))


def bars(page: Page) -> list[float]:
    """The values of the bars, in the order in which they are shown."""
    return list(page.run("[...document.querySelectorAll('meter')].map((bar) => bar.value)"))


def shot(page: Page, name: str) -> None:
    """Keeps a screenshot where BERTSMITH_SCREENSHOTS names a folder, for a person to look at."""
    if folder := os.environ.get("BERTSMITH_SCREENSHOTS"):
        page.screenshot(Path(folder) / f"{name}.png")


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize(("width", "dark"), [(1000, False), (320, True)])
def test_each_kind_of_model_is_shown(served: Served, page: Page, name: str, width: int, dark: bool) -> None:
    page.open(served.address, width, dark=dark)
    said = ask(page, name, ASKED[name])
    shot(page, f"{name}-{width}{'-dark' if dark else ''}")
    assert said
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.getElementById('status').className") == ""
    assert {f"{served.address}{path}" for path in ("/", "/page.js", "/page.css")} <= set(page.requested)


def test_what_is_shown_is_what_predict_answers(served: Served, page: Page, models: dict[str, Path]) -> None:
    page.open(served.address)
    (labels,) = Predictor(models["labels"], "cpu", precision="fp32")([ASKED["labels"]])
    said = ask(page, "labels", ASKED["labels"])
    assert said.startswith(labels["label"])
    assert f"{100 * labels['score']:.1f}%" in said
    assert bars(page) == pytest.approx(sorted(labels["scores"].values(), reverse=True), abs=1e-5)

    (score,) = Predictor(models["scores"], "cpu", precision="fp32")([ASKED["scores"]])
    assert ask(page, "scores", ASKED["scores"]) == f"{score['score']:.4f}"
    (alone,) = Predictor(models["scores"], "cpu", precision="fp32")([{"text": "word1 word2"}])
    assert ask(page, "scores", {"text_b": ""}) == f"{alone['score']:.4f}" != f"{score['score']:.4f}"
    assert page.run("document.getElementById('field-text_b').required") is False
    assert ask(page, "pairs", ASKED["pairs"]) == f"{score['score']:.4f}"
    assert page.run("document.getElementById('field-text_b').required") is True

    for name, context in (("answers", "context"), ("renamed", "1")):
        (answer,) = Predictor(models[name], "cpu", precision="fp32")([ASKED[name]])
        ask(page, name, ASKED[name])
        assert page.run("document.querySelector('#result mark').textContent") == answer["answer"]
        assert page.run("document.querySelector('#result .text').textContent") == ASKED[name][context]

    (tags,) = Predictor(models["tags"], "cpu", precision="fp32")([ASKED["tags"]])
    ask(page, "tags", ASKED["tags"])
    shown = page.run("[...document.querySelectorAll('.entity')].map((each) => each.firstChild.textContent)")
    assert shown == [each["text"] for each in tags["entities"]] != []

    (masks,) = Predictor(models["masks"], "cpu", precision="fp32")([ASKED["masks"]])
    ask(page, "masks", ASKED["masks"])
    assert page.run("document.querySelector('#result mark').textContent") == masks["guesses"][0][0]["piece"]


def test_choices_and_second_texts_go_to_their_columns(served: Served, page: Page, models: dict[str, Path]) -> None:
    page.open(served.address)
    rows = {
        "listed": {**ASKED["listed"], "options": ASKED["listed"]["options"].splitlines()},
        "endings": ASKED["endings"],
        "choices": {**ASKED["choices"], "choices": ASKED["choices"]["choices"].splitlines()},
    }
    for name, row in rows.items():
        (choice,) = Predictor(models[name], "cpu", precision="fp32")([row])
        assert ask(page, name, ASKED[name]).startswith(choice["choice"])
        assert bars(page) == pytest.approx(choice["scores"], abs=1e-5)
    for name, second in (("two", "other"), ("unsaid", "text_b")):
        (both,) = Predictor(models[name], "cpu", precision="fp32")([ASKED[name]])
        ask(page, name, ASKED[name])
        assert bars(page) == pytest.approx(sorted(both["scores"].values(), reverse=True), abs=1e-5)
        assert page.run(f"document.getElementById('field-{second}').required") is (name == "two")
    (alone,) = Predictor(models["unsaid"], "cpu", precision="fp32")([ASKED["unsaid"]["text"]])
    assert alone["scores"] != pytest.approx(both["scores"], abs=1e-4)
    ask(page, "unsaid", {"text_b": ""})
    assert bars(page) == pytest.approx(sorted(alone["scores"].values(), reverse=True), abs=1e-5)


def test_the_page_works_by_keyboard_alone(served: Served, page: Page) -> None:
    page.open(served.address)
    page.until("document.querySelectorAll('[role=tab]').length > 0")
    page.press(*TAB)
    assert page.run("document.activeElement.id") == "tab-0"
    page.press(*RIGHT)
    page.press(*RIGHT)
    assert page.run("document.activeElement.id") == "tab-2"
    page.press(*END)
    assert page.run("document.activeElement.getAttribute('aria-selected')") == "true"
    page.press(*RIGHT)  # from the last one to the first
    assert page.run("document.activeElement.id") == "tab-0"
    page.press(*TAB)
    page.press(*TAB)
    assert page.run("document.activeElement.id") == "field-text"
    page.type("lovely word1")
    page.press(*ENTER, modifiers=2)
    page.until("document.getElementById('status').textContent.startsWith('Answered')")
    page.press(*TAB)
    assert page.run("document.activeElement.textContent") == "Ask"


def test_texts_stay_texts_and_mistakes_are_shown(served: Served, page: Page) -> None:
    page.open(served.address)
    evil = "<img src=x onerror=document.title='taken'> awful <script>document.title='taken'</script>"
    ask(page, "tags", {"text": evil})
    assert "onerror=document.title=" in page.run("document.querySelector('#result .text').textContent")
    assert page.run("document.querySelectorAll('#result img, #result script').length") == 0
    assert page.run("document.title") == "Bertsmith"
    ask(page, "labels", {"text": "word1 " * 60})
    assert "tokens were cut, because the model reads 32" in page.run("document.getElementById('status').textContent")
    ask(page, "labels", {"text": "\U0001f600"})
    assert "a text holds nothing that the model knows" in page.run("document.getElementById('status').textContent")
    ask(page, "masks", {"text": "no mask here"})
    assert "there is no [MASK]" in page.run("document.getElementById('status').textContent")
    page.run("1")
    assert all("422" in each for each in page.problems)  # Chromium logs what is refused
    page.problems.clear()


def test_with_a_token_the_page_asks_for_it(page: Page, served_models: dict[str, Path]) -> None:
    with serving({"labels": served_models["labels"]}, BERTSMITH_TOKEN=TOKEN) as server:
        page.open(server.address, dark=True)
        page.until("!document.getElementById('token-form').hidden")
        shot(page, "token-1000-dark")
        assert page.run("document.activeElement.id") == "token"
        page.type(TOKEN)
        page.press(*ENTER)
        assert ask(page, "labels", ASKED["labels"])
        assert page.run("document.getElementById('token-form').hidden")
        assert all("401" in each for each in page.problems)
        page.problems.clear()


def test_the_page_allows_nothing_from_elsewhere(served: Served) -> None:
    for path in ("/", "/page.js", "/page.css"):
        status, text, headers = served.ask(path)
        policy = headers["content-security-policy"]
        assert status == 200
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "http://" not in text
        assert "https://" not in text
