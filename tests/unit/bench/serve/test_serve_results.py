"""What a serving bench makes of requests, and what it reads in the answers of each server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.serve.load import BROKEN, NO_ANSWER, NOT_SENT, OK, Sent
from bertsmith.bench.serve.phases import FAULTY, OVERLOAD, SATURATED, UNLOADED, Phase
from bertsmith.bench.serve.results import row_of, tables_of
from bertsmith.bench.serve.side import FASTAPI, INFINITY, LITSERVE, OURS, Side, sides_of

TOKENS = [10, 30]
NO_OFFLINE = {"side": "ours, fp32", "offline_tokens_per_second": None, "offline_tokens_per_cpu_second": None}


def sent(done: float, status: int = OK, due: float = 0.0, text: int = 0) -> Sent:
    return Sent(text, due, due + 0.001, done, status)


def open_phase(name: str, requests: list[Sent]) -> Phase:
    return Phase(name, requests, 40.0, 2.0, 4.0, 1.0, recovered=1.5)


def test_what_was_given_up_counts_with_its_time_and_refusals_do_not() -> None:
    requests = [
        sent(1.0), sent(1.9, text=1), sent(3.0), sent(0.02, 429), sent(0.03, 503), sent(5.0, NO_ANSWER),
        sent(0.0, BROKEN), sent(0.0, NOT_SENT), sent(0.5, 500),
    ]  # fmt: skip
    row = row_of(open_phase("50%", requests), TOKENS, server_cpu_seconds=6.0)
    counts = {"answered": 3, "refused": 2, "given_up": 1, "no_connection": 1, "not_sent": 1, "other_status": 1}
    assert {name: row[name] for name in counts} == counts
    assert row["requests"] == sum(counts.values())
    assert row["p50_ms"] == pytest.approx(2450)  # between 1.9 and 3.0
    assert row["p99_ms"] > 4900
    assert row["refusal_p99_ms"] == pytest.approx(29.9)
    assert row["texts_per_second"] == 1.0  # one came after requests had ended
    assert row["tokens_per_second"] == 20.0
    assert (row["generator_cores"], row["server_cores"]) == (0.25, 1.5)
    assert row["late_most_ms"] == pytest.approx(1.0)


def test_the_rate_of_clients_that_wait_is_that_of_all_their_answers() -> None:
    requests = [sent(0.5), sent(1.6), sent(1.6, text=1), sent(2.5)]
    row = row_of(Phase(SATURATED, requests, None, 2.0, 2.5, 1.0), TOKENS, 0.0)
    assert row["texts_per_second"] == pytest.approx(4 / 2.5)
    assert row["tokens_per_second"] == pytest.approx(60 / 2.5)


def test_the_tables_compare_with_each_server_s_own_rate() -> None:
    ended = {"slow": {"408": 2, "closed": 1}}
    faulty_phase = replace(open_phase(FAULTY, [sent(0.5)] * 3 + [sent(0.0, BROKEN)]), faults=ended)
    rows = [
        row_of(Phase(UNLOADED, [sent(0.1)] * 4, None, 1.0, 1.0, 0.1), TOKENS, 0.5) | NO_OFFLINE,
        row_of(Phase(SATURATED, [sent(1.0)] * 4, None, 1.0, 1.0, 0.1), TOKENS, 0.5)
        | NO_OFFLINE | {"offline_tokens_per_second": 50.0, "offline_tokens_per_cpu_second": 160.0},
        row_of(open_phase("50%", [sent(0.4)] * 4), TOKENS, 0.5) | NO_OFFLINE,
        row_of(faulty_phase, TOKENS, 0.5) | NO_OFFLINE,
        row_of(open_phase(OVERLOAD, [sent(1.0)] * 6 + [sent(0.04, 429)] * 14), TOKENS, 0.5) | NO_OFFLINE,
    ]  # fmt: skip
    throughput, latency, faulty, overload, generator = tables_of(rows)
    assert throughput.rows == [["ours, fp32", "4.0", "40", "50", "80%", "80", "160", "50%", "0.50"]]
    assert latency.rows[0] == ["ours, fp32: unloaded", "40.0", "100", "100", "100", "1.0", "4", "0"]
    assert latency.rows[1] == ["ours, fp32: 50%", "40.0", "400", "400", "400", "4.0", "4", "0"]
    assert faulty.rows == [["ours, fp32", "500", "500", "400", "4", "1", "slow: 2 x 408, 1 x closed"]]
    assert overload.rows == [
        ["ours, fp32", "40", "10.0", "30", "75%", "70%", "40", "0%", "0%", "0%", "1.5"]
    ]  # fmt: skip
    assert [row[0] for row in generator.rows] == ["ours, fp32: 50%", f"ours, fp32: {FAULTY}", "ours, fp32: overload"]


def test_the_answer_of_each_server_is_read() -> None:
    one = b'{"label": "yes", "score": 0.75}'
    both = b'[{"label": "yes", "score": 0.75}, {"label": "no", "score": 0.25}]'
    assert Side(OURS, "fp32").scores(both) == {"yes": 0.75, "no": 0.25}
    assert Side(INFINITY, "fp32").scores(b'{"data": [' + both + b"]}") == {"yes": 0.75, "no": 0.25}
    for who in (FASTAPI, LITSERVE):
        assert Side(who, "fp32").scores(one) == {"yes": 0.75}
    for side in sides_of((FASTAPI, LITSERVE, INFINITY), "bf16"):
        for wrong in (b'{"error": "no"}', b"no JSON", b"3", b'[{"label": "yes"}]'):
            with pytest.raises(ValueError, match=r".+"):
                side.scores(wrong)


def test_a_peer_without_its_environment_says_how_to_make_it(tmp_path: Path) -> None:
    for who in (FASTAPI, LITSERVE, INFINITY):
        with pytest.raises(BertsmithError, match="make bench-peers"):
            Side(who, "fp32").command(tmp_path / "model", 1, tmp_path)
    python = tmp_path / FASTAPI / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    command = Side(FASTAPI, "fp32").command(tmp_path / "model", 1, tmp_path)
    assert command[0] == str(python)
    assert Path(command[1]).name == "tutorial.py"


def test_ours_runs_in_each_precision_once() -> None:
    assert [side.label for side in sides_of((), "fp32")] == ["ours, fp32"]
    assert [side.label for side in sides_of((FASTAPI,), "bf16")] == [
        "ours, bf16", "ours, fp32", "FastAPI over pipeline, fp32",
    ]  # fmt: skip
