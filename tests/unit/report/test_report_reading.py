"""Folders of runs in any state: what the page says of each, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.report import report
from bertsmith.report.page import page
from bertsmith.report.parts import Limits
from bertsmith.report.reading import read_runs
from bertsmith.report.report import write_report
from made_reports import Parsed, train_record, write_run

LINES = [train_record(step) for step in range(1, 6)]
END = {"kind": "end", "step": 5, "phase": 1, "phase_step": 5, "tokens": 500}
START = {"kind": "environment", "step": 0, "time": "2026-01-01T00:00:00+00:00", "torch": "2.12.0", "devices": {"H": 8}}


def shown(*folders: Path) -> Parsed:
    return Parsed(page(read_runs(folders), Limits()))


def finish(folder: Path) -> Path:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return folder


def test_each_state_of_a_run_is_told(tmp_path: Path) -> None:
    finished = finish(write_run(tmp_path / "finished", [*LINES, END]))
    killed = write_run(tmp_path / "killed", LINES)
    stopped = write_run(tmp_path / "stopped", LINES)
    (stopped / "stopped").write_text("stopped at step 5\n")
    error = {"kind": "error", "step": 5, "message": "the gradient is not finite"}
    failed = write_run(tmp_path / "failed", LINES, [START, error])
    begun = write_run(tmp_path / "begun")
    (begun / "metrics.jsonl").unlink()
    # The error was at a later step than the run has come to again.
    later = {**error, "step": 900}
    resumed = write_run(tmp_path / "resumed", LINES, [START, later, {**START, "step": 1}])
    found = shown(finished, killed, stopped, failed, begun, resumed)
    states = found.tables["Final figures"][1]
    assert [each.split(",")[0].split(":")[0] for each in states[1:]] == [
        "finished", "not finished", "stopped by a signal after saving", "ended by an error", "started", "not finished",
    ]  # fmt: skip
    assert found.tables["Warnings of failed"][1][2] == "error: the gradient is not finite"


def test_a_run_without_figures_makes_a_page(tmp_path: Path) -> None:
    found = shown(write_run(tmp_path / "run", recipe=""))
    assert "There are no figures yet." in found.text
    assert "Nothing was measured yet." in found.text


def test_a_line_that_was_cut_short_is_counted_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", LINES)
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('\nnull\n[1]\n{"kind": "train"}\n{"kind": "train", "step": 6, "tokens": "many"}\n\xff\n')
        for name in ("steps", "seconds_per_step", "seed_step"):
            file.write(
                f'{{"kind": "train", "step": 6, "{name}": null}}\n{{"kind": "train", "step": 6, "{name}": 1e999}}\n'
            )
        file.write('{"kind": "train", "step": 6, "lo')
    (run,) = read_runs([folder])
    assert run.unreadable == {"metrics.jsonl": 13}
    assert run.step == 5
    assert "13 lines of metrics.jsonl cannot be read" in shown(folder).text


def test_a_fine_tuning_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    records = [
        {"kind": "train", "step": 2, "seed": 42, "seed_step": 2, "loss": 1.0, "learning_rate": 1e-4},
        {"kind": "evaluation", "step": 2, "seed": 42, "seed_step": 2, "f1": 0.5, "test_f1": 0.25},
    ]
    found = shown(write_run(tmp_path / "run", records, task="classify"))
    assert "The run is not finished, so no seed was chosen yet" in found.text
    assert found.column("Final figures")["dev, last: test f1"] == "0.25"
    assert found.column("F1: numbers", 2) == {"seed 42, dev": "0.5 at 2", "seed 42, test": "0.25 at 2"}


def test_results_of_another_version_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", LINES, task="classify")
    (folder / "finetune.json").write_text('{"task": "classify"}')
    (folder / "report" / "dev").mkdir(parents=True)
    (folder / "report" / "dev" / "per_class.json").write_text("{")
    (folder / "report" / "dev" / "confusion.json").write_text('{"rows": "dev"}')
    found = shown(folder)
    assert "finetune.json is of another version" in found.text
    assert "report/dev/per_class.json is not shown" in found.text
    assert "dev/confusion.json is not in the form that is known" in found.text


def test_warnings_that_differ_in_numbers_stand_together_and_are_all_there(tmp_path: Path) -> None:
    events = [
        START,
        *({"kind": "warning", "step": step, "message": f"{step} updates were skipped"} for step in (3, 4, 5)),
        {"kind": "warning", "step": 4, "message": "the disk <is> full"},
    ]
    folder = write_run(tmp_path / "run", LINES, events)
    other = {"kind": "warning", "step": 1, "message": "only here"}
    (folder / "events.rank-3.jsonl").write_text(json.dumps(other) + "\n")
    found = shown(folder)
    rows = found.tables["Warnings of run"][1:]
    assert [row[:2] for row in rows] == [["1, rank 3", "1"], ["3 to 5", "3"], ["4", "1"]]
    assert all(f"{step}: {step} updates were skipped" in rows[1][2] for step in (3, 4, 5))
    assert rows[2][2] == "the disk <is> full"
    assert found.column("Final figures")["warnings"] == "5"


def test_a_run_of_an_earlier_version_says_what_it_did_not_record(tmp_path: Path) -> None:
    found = shown(write_run(tmp_path / "run", LINES, events=None))
    assert found.column("Final figures")["warnings"] == "not recorded"
    assert "runs of earlier versions did not record them" in found.text


def test_environments_tell_what_changed_at_a_resume(tmp_path: Path) -> None:
    resumed = {**START, "step": 3, "torch": "2.13.0"}
    found = shown(write_run(tmp_path / "run", LINES, [START, resumed], corpus="a" * 64))
    facts = found.column("What runs were made on")
    assert facts["torch"] == "2.12.0 (from step 0); 2.13.0 (from step 3)"
    assert (facts["devices"], facts["corpus"], facts["device"]) == ("8 x H", "aaaaaaaaaaaa…", "cpu")
    assert facts["started"].count("2026-01-01") == 2


def test_only_what_differs_between_recipes_is_in_the_table(tmp_path: Path) -> None:
    recipes = {
        name: f"seed: 1\nphase1:\n  steps: 5\n  warmup: {warmup}\n{more}"
        for name, warmup, more in (("aa", 0.1, ""), ("bb", 0.2, "extra: 3\n"))
    }
    runs = [write_run(tmp_path / name, LINES, recipe=text, corpus=name * 32) for name, text in recipes.items()]
    found = shown(*runs)
    rows = found.tables["What differs"][1:]
    assert rows == [["phase1.warmup", "0.1", "0.2"], ["corpus", "aaaaaaaaaaaa…", "bbbbbbbbbbbb…"], ["extra", "–", "3"]]
    assert "2 other fields are the same" in found.text


def test_folders_that_are_no_runs_are_refused_with_a_hint(tmp_path: Path) -> None:
    run = finish(write_run(tmp_path / "runs" / "first", LINES))
    cases = {
        tmp_path / "nowhere": "there is no such folder",
        run / "metrics.jsonl": "this is a file, and a run is a folder",
        run / "model": f"name the run: {run}",
        tmp_path / "runs": "name one of those inside: first",
        tmp_path: "it has no run.json",
    }
    for folder, said in cases.items():
        with pytest.raises(BertsmithError) as error:
            read_runs([folder])
        assert said in str(error.value)
    for number in range(6):
        finish(write_run(tmp_path / "runs" / f"run-{number}", LINES))
    with pytest.raises(BertsmithError, match="first, run-0, run-1, run-2 and 3 more"):
        read_runs([tmp_path / "runs"])


def test_a_run_that_is_given_twice_is_shown_once(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    run = write_run(tmp_path / "run", LINES)
    assert [each.name for each in read_runs([run, tmp_path / "." / "run", run])] == ["run"]
    assert "2 folders named twice" in said.text


def test_only_a_report_is_replaced(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", LINES), tmp_path / "new" / "page.html"
    write_report([run], out)
    before = out.read_text(encoding="utf-8")
    write_report([run], out)
    assert out.read_text(encoding="utf-8") == before
    script = tmp_path / "make.sh"
    script.write_text("#!/bin/sh\nbertsmith report runs/one --out page.html\n", encoding="utf-8")
    for path, text in (
        (run / "metrics.jsonl", "not a report"),
        (script, "not a report"),
        (tmp_path, "this is a folder"),
        (script / "page.html", "a file is in the way"),
    ):
        with pytest.raises(BertsmithError, match=text):
            write_report([run], path)
    assert (run / "metrics.jsonl").read_text(encoding="utf-8").count("\n") == len(LINES)


def test_one_run_and_what_is_no_path_in_python(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", LINES), tmp_path / "page.html"
    pages = [write_report(runs, out).read_text(encoding="utf-8") for runs in (run, str(run), [run])]
    assert pages[0] == pages[1] == pages[2]
    with pytest.raises(BertsmithError, match="out is of type NoneType, which is no path"):
        write_report([run], None)
    for wrong in (None, 5, [None]):
        with pytest.raises(
            BertsmithError, match=f"a run is of type {'int' if wrong == 5 else 'NoneType'}, which is no"
        ):
            write_report(wrong, out)
    with pytest.raises(BertsmithError, match="a run is of type int, which is no path"):
        write_report([run, 5], out)


def test_a_page_that_would_be_too_large_is_shortened_and_says_so(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report.MOST_BYTES == 2_000_000
    monkeypatch.setattr(report, "MOST_BYTES", 500_000)
    figures = {f"{name}_loss": 1.0 / (1 + name) for name in range(40)}
    records = [train_record(step, **{key: value * (step % 7) for key, value in figures.items()}) for step in range(700)]
    runs = [write_run(tmp_path / f"run{number}", records) for number in range(2)]
    out = write_report(runs, tmp_path / "page.html")
    assert out.stat().st_size < 500_000
    assert "which the page says" in said.text
    assert "are thinned" in Parsed(out.read_text(encoding="utf-8")).text


def test_errors_of_numbers_are_called_by_their_usual_names(tmp_path: Path) -> None:
    measured = [{"kind": "evaluation", "step": step, "r2": 0.5, "rmse": 1.0, "mae": 0.8} for step in (1, 2)]
    run = write_run(tmp_path / "run", [train_record(1), train_record(2), *measured])
    shown = Parsed(page(read_runs([run]), Limits()))
    for name in ("R²", "RMSE, the lower the better", "MAE, the lower the better"):
        assert f"{name}: numbers" in shown.tables


def test_charts_are_in_the_units_that_their_titles_name(tmp_path: Path) -> None:
    lines = [train_record(step, data_wait_share=0.05 * step, memory_bytes=(4 - step) * 1e9) for step in (1, 2, 3)]
    found = shown(write_run(tmp_path / "run", lines))
    numbers = {
        "Time spent waiting for data, %": ["3", "5 at 1", "5 at 1", "15 at 3", "15 at 3"],
        "Memory of the first rank, the most so far, GB": ["3", "3 at 1", "1 at 3", "3 at 1", "1 at 3"],
    }
    for title, expected in numbers.items():
        assert found.tables[f"{title}: numbers"][1][1:] == expected
    totals = found.column("Final figures")
    assert totals["mean tokens per second"] == "50"
    assert totals["mean data wait share"] == "10.00%"
    assert totals["most memory, first rank"] == size(3e9), "the most, not the last"


def test_what_frequencies_reach_stands_beside_its_own_figure_of_a_run_alone(tmp_path: Path) -> None:
    beside = {"most_frequent_accuracy": 0.05, "most_frequent_alphabetic_accuracy": 0.07}
    figures = {"unigram_loss": 7.0, "masked_loss": 6.0, "masked_accuracy": 0.1, "masked_accuracy_alphabetic": 0.2}
    phases = [train_record(1, 1), train_record(2, 2), train_record(3, 2)]
    measured = [{"kind": "evaluation", "step": step, "phase": 1, **figures, **beside} for step in (1, 3)]
    measured[1] |= {"unigram_loss": 7.5}
    runs = [write_run(tmp_path / name, [*phases, *measured]) for name in ("a", "b")]

    def words(*folders: Path) -> dict[str, list[str]]:
        charts = [each for each in shown(*folders).charts if each.get("role") == "img"]
        return {each.findtext("title") or "": [text.text or "" for text in each.iter("text")] for each in charts}

    page_of_one = shown(runs[0]).text
    for name in ("by frequency alone (7.5)", "most frequent piece (0.05)", "most frequent piece (0.07)"):
        assert page_of_one.count(name) >= 1
    losses = page_of_one.index("by frequency alone (7.5)")
    all_words = page_of_one.index("always the most frequent piece (0.05)")
    alphabetic = page_of_one.index("always the most frequent piece (0.07)")
    assert losses < page_of_one.index("Masked accuracy") < all_words < page_of_one.index("Masked accuracy alphabetic")
    assert page_of_one.index("Masked accuracy alphabetic") < alphabetic
    assert "by frequency alone" not in shown(*runs).text
    assert [word for word in words(runs[0])["Loss, all together"] if word.startswith("phase")] == ["phase 2"]
    assert not [word for word in words(*runs)["Loss, all together"] if word.startswith("phase")]


def test_more_runs_than_a_page_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", LINES)
    monkeypatch.setattr("bertsmith.report.report.MOST_BYTES", 5_000)
    with pytest.raises(BertsmithError, match="name fewer runs"):
        write_report([run], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_endless_warnings_leave_room_for_the_page(tmp_path: Path) -> None:
    words = [f"{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(600)]
    events = [{"kind": "warning", "step": 1, "message": f"{word} {'long ' * 4000}"} for word in words]
    run, out = write_run(tmp_path / "run", LINES, [START, *events]), tmp_path / "page.html"
    write_report([run], out)
    text = out.read_text(encoding="utf-8")
    assert len(text) < 2_000_000
    assert "of 600 different warnings" in text
    assert "more characters)" in text
