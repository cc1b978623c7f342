"""Words that an English-speaking engineer would not use for what they mean here, and what to write instead."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bertsmith"

# A pattern, matched as whole words, in identifiers too (the parts of names are parted by underscores): what to write.
BANNED = {
    r"(?<!null_)odds": "probabilities",  # null_odds.json is a file of SQuAD's
    r"cards?": "GPU",
    r"turned": "transposed, or what happened to it",
    r"by_x": "grad_x",
    r"slopes?": "derivatives, or gradients",
    r"learns(?=\()|(?<=\.)learns": "requires_grad",
    r"(?:leaves?|leaving|left) (?:\S+ ){0,3}away": "omit",
    r"(?:to|can|could|cannot|not) be had": "available",
    r"none the wiser": "gains nothing",
    r"(?:goes|gone|went) on(?: with)?|(?:go|going) on with": "continue, or resume",
    r"begun(?!_on)": "started",
    r"by whom": "which part does it",
    r"other bytes than": "checksum mismatch",
    r"knows? no": "does not apply to, or has no",
    r"mend(?:ed|s|ing)?": "fix",
    r"(?:behind|below|beside) (?:the |each |one an)?other": "one after another, next to each other",
    r"forth": "forward",
    r"(?:lies?|lay) (?:beside|behind|together|there|ready|between|before)": "is, or are",
    r"as \w+ has it": "as in X's code",
    r"(?!there)\w+['}\"]* is no (?:field|flag|file|model|document|row|number|code)": "is not a",
    r"will do too": "or use",
    r"(?:is|are|was|were) said": "is logged, is reported",
    r"said aloud": "logged",
    r"(?:is|are|was|were) told": "is given, is logged",
    r"(?:is|are|was|were|nothing is) asked of": "is used for, has no label",
    r"unasked": "without a check, without a label",
    r"by nobody": "not",
    r"for whoever": "for those who",
    r"run of words|runs of words": "n-gram",
    r"between (?:its|the|two|a CPU's) products": "the C++ kernels, or the operators",
}
PATTERNS = {
    re.compile(rf"(?<![A-Za-z])(?:{each})(?![A-Za-z])".replace(" ", r"\s+"), re.IGNORECASE): better
    for each, better in BANNED.items()
}


@cache
def texts() -> dict[str, list[Path]]:
    """Files by the room of the package, or by the page, that they belong to."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".cpp", ".h", ".yaml"):
            name = path.relative_to(PACKAGE).as_posix()
            room = f"src/{name.split('/')[0]}" if "/" in name else "src"
            found.setdefault(room, []).append(path)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*"))]:
        if path.suffix in (".md", ".yaml", ".sh", ".sbatch"):
            found[path.relative_to(ROOT).as_posix()] = [path]
    return found


def findings(text: str) -> list[str]:
    """Where each banned word is and what to write instead; a line end within a phrase counts as a space."""
    flat = re.sub(r"\n[ \t#*>/]*", lambda match: " " * len(match.group()), text)
    return [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {match.group()} (write: {better})"
        for pattern, better in PATTERNS.items()
        for match in pattern.finditer(flat)
    ]


@pytest.mark.parametrize("room", texts())
def test_a_room_is_written_in_plain_english(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}, {each}"
        for path in texts()[room]
        for each in findings(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("softmax odds", "odds"),
        ("def odds_of(x):", "odds"),
        ("by_x = 3", "by_x"),
        ("an NVIDIA card", "card"),
        ("leave --strict away", "leave --strict away"),
        ("are\n    # gone on with", "gone on with"),
        ("    # one behind\n    # the other", "behind the other"),
        ("it goes on where it was", "goes on"),
        ("'x' is no field of it", "x' is no field"),
        ("if learns(weight):", "learns"),
        ("which is said.", "is said"),
        ("Mend it", "Mend"),
    ],
)
def test_a_planted_word_is_found(text: str, word: str) -> None:
    (found,) = findings(text)
    assert f": {' '.join(word.split())} (" in " ".join(found.split())
    assert not findings("the gods recommend a discard; it turns, henceforth; there is no flag -x; it learns words")
