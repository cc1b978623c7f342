"""The pictures of the pages of tasks, from the runs that the commands of these pages leave.

    python benchmarks/page_pictures.py RUNS [--only kinds] [--out docs/pictures]
    python benchmarks/page_pictures.py --report report.html --out docs/runs

RUNS is the folder `runs` in which the pages were followed. A run that is not there is named, and its pictures stay as
they are. Pictures of the server's page need Chromium; those of a report are copied from `report/test`. With --report:
pictures of the upper part of a page that `bertsmith report` wrote, as wide as a desk and as a phone; of its end and of
a task's figures at the desk, and of its curves on the phone.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the browser, and a server that is waited for

from made_browser import Page, browsing  # noqa: E402
from made_served import serving  # noqa: E402

WIDTH, LEAST_HEIGHT = 640, 600
DESK, PHONE, END = (1280, 2900), (390, 1700), 1600
ASKED: dict[str, tuple[str, ...]] = {
    "reviews": ("a gripping, beautifully acted film",),
    "kinds": ("CVS selling their own version of epipen at 1 / 6 th price .",),
    "reports": (
        "The airline will cut 600 jobs this year, it said on Tuesday.",
        "On Tuesday the airline said that 600 jobs would be cut this year.",
    ),
    "similar": ("A man plays a flute.", "Someone is playing an instrument."),
    "entities": ("Just landed in Chicago, off to see Taylor Swift tonight",),
    "questions": ("Who built the tower?", "The tower was built by John Smith in 1432."),
    "endings": ("The man was very hungry. He", "ate a sandwich.\npainted the moon.\nbecame a chair."),
    "alike": (
        "A man plays a flute.",
        "Someone is playing an instrument.\nA woman is practising the flute.\nIt will rain in the afternoon.",
    ),
    "words": ("The war began in [MASK] 1914 and ended in 1918.",),
}
"""What is typed into the fields of the server's page, by the name of the run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("runs", type=Path, nargs="?")
    which.add_argument("--report", type=Path, help="a page of `bertsmith report`")
    parser.add_argument("--only", nargs="*", default=list(ASKED), choices=list(ASKED))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args()
    if given.report is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        with opened() as page:
            of_page(given.report, given.out, page)
        return
    missing = [name for name in given.only if not (given.runs / name).is_dir()]
    there = [name for name in given.only if name not in missing]
    given.out.mkdir(parents=True, exist_ok=True)
    for name in there:
        of_report(name, given.runs / name / "report" / "test", given.out)
    if there:
        with opened() as page:
            for name in there:
                of_server(name, given.runs / name, given.out, page)
    if missing:
        sys.exit(f"left as they are, for there are no such runs in {given.runs}: {', '.join(missing)}")


@contextmanager
def opened() -> Iterator[Page]:
    """A tab of a browser with a profile of its own."""
    # Processes of the browser may write into its profile for a moment after it has ended.
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with folder as profile, browsing(Path(profile)) as page:
        yield page


def of_page(report: Path, out: Path, page: Page) -> None:
    """Of the upper part of a report; at a desk of its end, and of a task's figures; on a phone of its curves."""
    parts = {DESK: {"": 0, "-end": -END, "-task": "[id^=task]"}, PHONE: {"": 0, "-curves": "#curves"}}
    for (width, height), of_width in parts.items():
        page.open(report.resolve().as_uri(), width, height)
        with tempfile.TemporaryDirectory() as made:
            whole = Path(made) / "page.png"
            page.screenshot(whole)
            for name, top in of_width.items():
                start = page.run(f"document.querySelector('{top}')?.offsetTop") if isinstance(top, str) else top
                if start is not None:
                    save(whole, out / f"{report.stem}-{width}{name}.png", start, height)


def of_report(name: str, report: Path, out: Path) -> None:
    """Copies those that a page shows."""
    pages = "".join(each.read_text(encoding="utf-8") for each in sorted((ROOT / "docs").glob("*.md")))
    for picture in sorted(set(re.findall(rf"\(pictures/{name}-(\w+)\.png\)", pages)) - {"page"}):
        save(report / f"{picture}.png", out / f"{name}-{picture}.png")


def of_server(name: str, run: Path, out: Path, page: Page) -> None:
    """Types into the fields of the page, asks, and takes a picture of the whole page."""
    with serving({name: run}) as served, tempfile.TemporaryDirectory() as made:
        page.open(served.address, WIDTH, LEAST_HEIGHT)
        page.until("document.querySelector('#form textarea')")
        for place, text in enumerate(ASKED[name]):
            page.run(f"document.querySelectorAll('#form textarea')[{place}].focus()")
            page.type(text)
        page.run("document.querySelector('#form button').click()")
        page.until("/^Answered/.test(document.querySelector('#status').textContent)")
        page.run("document.activeElement.blur()")
        height = page.run("document.documentElement.scrollHeight")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False
        )  # fmt: skip
        page.screenshot(Path(made) / "page.png")
        save(Path(made) / "page.png", out / f"{name}-page.png")


def save(picture: Path, out: Path, top: int = 0, height: int = 1 << 16) -> None:
    """A picture of few colours, which takes a third of the bytes. top: from where on it is taken, below 0 from the
    end. height: at most."""
    with Image.open(picture) as whole:
        top = max(0, whole.height + top) if top < 0 else top
        image = whole.crop((0, top, whole.width, min(whole.height, top + height)))
        image.convert("RGB").quantize(256).save(out, optimize=True)
    print(out, flush=True)


if __name__ == "__main__":
    main()
