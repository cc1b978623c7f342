"""`bertsmith bench serve` at a tiny size: each server is started and put through all phases, and what is not there is
named."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.predict.texts import open_classifier
from bertsmith.bench.process import Child
from bertsmith.bench.run import run_bench
from bertsmith.bench.serve import bench as serve
from bertsmith.bench.serve.faults import UNDER_WAY
from bertsmith.bench.serve.load import MOST_A_SECOND
from bertsmith.bench.serve.phases import FAULTY, OVERLOAD, QUICK, SATURATED, UNLOADED
from bertsmith.cli import main
from made_heads import made_head, made_short_classifier
from made_rows import WORDS

pytestmark = [
    pytest.mark.usefixtures("no_data", "forked_children"),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "httptools")),
        reason="fastapi, uvicorn or httptools is not installed",
    ),
]
PHASES = [UNLOADED, SATURATED, "50%", "70%", FAULTY, OVERLOAD]


def bench(tmp_path: Path, *flags: str) -> dict[str, Any]:
    to = tmp_path / "rows.json"
    assert main(["bench", "serve", "--quick", "--json", str(to), "--environments", str(tmp_path), *flags]) == 0
    found: dict[str, Any] = json.loads(to.read_text())
    return found


def check(rows: list[dict[str, Any]]) -> None:
    """What holds for the phases of any server, on a busy machine too."""
    assert [row["phase"] for row in rows] == PHASES
    for row in rows:
        counted = ("answered", "refused", "given_up", "no_connection", "not_sent", "other_status")
        assert sum(row[name] for name in counted) == row["requests"] >= 1
        assert row["other_status"] == row["no_connection"] == 0
        assert row["phase"] == OVERLOAD or row["answered"] == row["requests"]
    assert rows[0]["largest_difference"] < 1e-3
    assert rows[0]["requests"] >= 20
    assert rows[1]["tokens_per_second"] > rows[1]["texts_per_second"] > 0
    for row, share in zip(rows[2:], (0.5, 0.7, 0.5, 10), strict=True):
        assert row["rate"] == pytest.approx(min(share * rows[1]["texts_per_second"], MOST_A_SECOND))
        assert row["late_most_ms"] >= 0
    assert all(row["generator_cores"] > 0 for row in rows)


def test_our_server_goes_through_all_phases(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(serve, "QUICK", replace(QUICK, overload_seconds=1.0))
    model = str(made_short_classifier(tmp_path / "run"))
    found = bench(tmp_path, "--only", "ours, fp32", "--against", "--model", model)
    check(found["rows"])
    texts, tokens = (found["rows"][1][f"{each}_per_second"] for each in ("texts", "tokens"))
    assert 8 <= tokens / texts <= 12, "tokens count as far as the model reads"
    assert found["rows"][1]["offline_tokens_per_second"] > 0
    faults = found["rows"][4]["faults"]
    assert faults.keys() == {"slow", "half-closed", "gone", "no JSON", "100 MB"}
    assert UNDER_WAY in faults["slow"]
    assert set(faults["slow"]) <= {"408", UNDER_WAY}
    assert sum(faults["slow"].values()) >= 100
    assert {*faults["gone"]} - {UNDER_WAY} == {"not awaited"}
    assert {*faults["no JSON"]} - {UNDER_WAY} == {"422"}
    # a client that was held up between its request and the end of its side has had its answer before
    assert set(faults["half-closed"]) <= {"closed", "200", UNDER_WAY}
    assert {*faults["half-closed"]} & {"closed", "200"}
    assert set(faults["100 MB"]) <= {"413", "closed", UNDER_WAY}
    assert found["machine"]["threads"]
    said = capsys.readouterr().out
    for words in (
        "Saturated",
        "Latency",
        "clients that misbehave",
        "Ten times the load",
        "The generator",
        "made ones; SST-2",
    ):
        assert words in said


def test_the_peers_read_as_much_of_a_long_text_as_ours(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("transformers")
    from bertsmith.bench.serve import tutorial, with_litserve

    predictor = open_classifier(made_short_classifier(tmp_path / "run"), tmp_path / "for-all")
    text = " ".join(WORDS)
    (ours,) = predictor([text])
    monkeypatch.setattr("sys.argv", ["with_litserve.py", str(predictor.folder)])
    litserve = with_litserve.Classify()
    litserve.setup("cpu")
    fastapi = next(each for each in tutorial.make_app(str(predictor.folder)).routes if each.path == "/predict")
    for answer in (*litserve.predict([text]), fastapi.endpoint(tutorial.Request(text=text))):
        assert answer == {"label": ours["label"], "score": pytest.approx(ours["score"], abs=1e-6)}


@pytest.mark.slow
def test_a_peer_takes_the_same_load_and_those_without_an_environment_are_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    python = tmp_path / "fastapi" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = bench(tmp_path, "--only", "over pipeline")
    assert {row["side"] for row in found["rows"]} == {"FastAPI over pipeline, fp32"}
    check(found["rows"])
    about = "\n".join(found["about"])
    assert "left out: litserve over pipeline, fp32: its virtual environment is not in" in about
    assert "FastAPI over pipeline, fp32: fastapi " in about


def test_a_server_that_ends_is_left_out_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "server" / "output.log"
    command = ["sh", "-c", "echo starting; echo 'no such engine' >&2; exit 3"]
    spec = {"command": command, "port": 1, "path": "/", "body": "{}", "log": log}
    with Child("bertsmith.bench.serve.server", spec, log.parent) as child, pytest.raises(BertsmithError) as raised:
        child.ready()
    assert raised.value.what == "it ended with status 3: no such engine"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (BenchOptions(only="nothing"), "no side contains 'nothing'"),
        (BenchOptions(against=("tensorrt",)), "there is no 'tensorrt' to compare with"),
    ],
)
def test_a_server_that_is_not_known_is_refused(options: BenchOptions, what: str) -> None:
    with pytest.raises(BertsmithError, match=what):
        run_bench("serve", options, ["bertsmith", "bench", "serve"])


def test_a_model_that_classifies_no_texts_is_not_served(tmp_path: Path) -> None:
    model = made_head("qa", tmp_path / "qa")
    with pytest.raises(BertsmithError, match="this model is of qa"):
        run_bench("serve", BenchOptions(model=model, against=()), ["bertsmith", "bench", "serve"])
