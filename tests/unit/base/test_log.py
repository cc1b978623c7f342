"""What the user reads: durations and sizes as people say them, each choice once, progress as lines."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from bertsmith.base import log


@pytest.fixture
def spoken(capsys):
    """Lines said to standard error since the last call."""
    log.configure()
    yield lambda: capsys.readouterr().err.splitlines()
    log.configure(quiet=True)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.0 s"),
        (0.84, "0.8 s"),
        (9.94, "9.9 s"),
        (42.4, "42 s"),
        (59.6, "1 min 0 s"),
        (185, "3 min 5 s"),
        (3599.9, "1 h 0 min"),
        (8040, "2 h 14 min"),
        (112_000_000, "31,111 h 6 min"),
    ],
)
def test_durations(seconds, said):
    assert log.duration(seconds) == said


def test_a_count_of_one_has_no_plural():
    said = [log.counted(count, what) for count, what in ((1, "row"), (0, "row"), (1200, "row"), (2, "class"))]
    assert said == ["1 row", "0 rows", "1,200 rows", "2 classes"]


def test_of_many_names_the_first_are_told_and_how_many_more_there_are():
    assert log.first_of("abc") == log.first_of(iter("abc"), 3) == "a, b, c"
    assert log.first_of(map(str, range(1210)), 2) == "0, 1 and 1,208 more"
    assert log.first_of([]) == ""


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (812, "812 B"), (-4_100_000, "-4.1 MB"), (2.5e9, "2.5 GB"), (3e12, "3.0 TB"), (4e15, "4000.0 TB")],
)
def test_sizes(count, said):
    assert log.size(count) == said


def test_a_choice_is_said_once(spoken):
    for _ in range(3):
        log.log_choice("colour of the test", "blue", "it was first")
    assert spoken() == ["colour of the test: blue (it was first)"]


def test_quiet_keeps_warnings(spoken):
    log.configure(quiet=True)
    log.say("an ordinary fact")
    log.warn("the disk is nearly full")
    assert spoken() == ["warning: the disk is nearly full"]


def test_progress_counts_and_tells_lines(spoken):
    with log.Progress("tokens", total=10, unit="docs", every_seconds=0) as progress:
        progress.advance(4, "part 1")
    assert progress.done == 4
    (line,) = spoken()
    assert "tokens: 4/10 docs" in line
    assert "left" in line
    assert line.endswith("; part 1")


def test_details_are_shown_under_debug_only_and_warnings_always(spoken):
    def detailed() -> list[str]:
        with log.as_details(), log.as_details():
            log.say("a detail")
            log.warn("the disk is nearly full")
            with log.Progress("tokens", total=10, every_seconds=0) as progress:
                progress.advance(4)
        log.say("a result")
        return spoken()

    assert detailed() == ["warning: the disk is nearly full", "a result"]
    log.configure(debug=True)
    assert detailed() == ["a detail", "warning: the disk is nearly full", "a result"]


def test_a_repeated_warning_is_shown_once_in_its_block(spoken):
    def repeated() -> list[str]:
        with log.each_warning_once():
            for _ in range(2):
                log.warn("two rows are alike")
                log.say("a fact")
        log.warn("two rows are alike")
        return spoken()

    warning = "warning: two rows are alike"
    assert repeated() == [warning, "a fact", "a fact", warning]
    log.configure(debug=True)
    assert repeated() == [warning, "a fact", warning, "a fact", warning]


def test_warnings_are_taken_as_well_as_shown(spoken):
    taken = []
    with log.warnings_taken(taken.append):
        log.warn("the disk is nearly full")
        log.say("a fact")
        with log.each_warning_once():
            log.warn("two rows are alike", of_all_ranks=True)
    log.warn("later")
    assert taken == ["the disk is nearly full", "two rows are alike"]
    assert spoken() == [
        "warning: the disk is nearly full", "a fact", "warning: two rows are alike", "warning: later"
    ]  # fmt: skip


def test_an_error_ends_the_details(spoken):
    with pytest.raises(ValueError, match="wrong"), log.as_details():
        raise ValueError("wrong")
    log.say("an ordinary fact")
    assert spoken() == ["an ordinary fact"]


def test_a_choice_among_details_is_logged_when_it_is_made_in_the_open(spoken):
    with log.as_details():
        log.log_choice("cut", "small", "why")
    assert spoken() == []
    for _ in range(2):
        log.log_choice("cut", "small", "why")
    assert spoken() == ["cut: small (why)"]


@pytest.mark.parametrize("tell", [log.say, log.warn])
def test_what_utf8_cannot_hold_is_written_as_its_escape(tell, caplog):
    """A file's name may hold it, or a user's JSON; what takes the log, such as a file of it, may be in UTF-8."""
    caplog.set_level("INFO", logger=log.logger.name)
    tell("the column '\ud800'")
    assert caplog.messages[-1].encode().endswith(rb"the column '\ud800'")


def test_lines_that_a_full_disk_refused_are_counted_when_it_takes_one_again(spoken, monkeypatch):
    class Disk(io.StringIO):
        full = True

        def write(self, text):
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    disk = Disk()
    monkeypatch.setattr(sys, "stderr", disk)
    log.say("one")
    log.warn("two")
    disk.full = False
    log.say("three")
    log.say("four")
    missing = "warning: up to 2 lines of the log are missing here"
    assert disk.getvalue().splitlines() == [missing, "three", "four"]
