"""Wikitext to plain text, a paragraph a line, as a reader of the page sees its running text.

Three steps, each linear in the page: `outer` takes out what may span lines and nest (comments, references,
templates ...); here tables go, and lines become headings, list items and paragraphs; `inline` has
mwparserfromhell parse what is left within a paragraph. All that is removed is counted by what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bertsmith.corpus.wiki.holes import tidied
from bertsmith.corpus.wiki.inline import Inline, Spaces
from bertsmith.corpus.wiki.outer import MARK, Outer, Removed
from bertsmith.corpus.wiki.page_time import Check

__all__ = ["Removed", "Spaces", "plain_text"]

_TITLE_LINE = "first lines that repeat the title, left out"
_MAGIC = re.compile(r"__[A-Z]{3,}(?:_[A-Z]+)*__")
_LIST = "*#:; \t"
_QUOTES = re.compile(r"('{2,})")
# In Chinese and some other languages a page is shown in one of several scripts.
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")
_RULE_OF_VARIANT = re.compile(r"\s*[a-z]{2,3}(?:-[a-z]+)*\s*:")
_RULE = re.compile(r"-{4,}")
# A link may go on over this many lines, as captions of pictures do.
_MOST_JOINED = 20
# Sections that hold lists of works, links and notes, in the languages with the largest wikis.
_APPARATUS = frozenset(
    name
    for language in (
        "references, notes, notes and references, references and notes, footnotes, citations, sources, bibliography",
        "further reading, external links, external link, see also, works cited, literature, endnotes",
        "general references, explanatory notes",
        "einzelnachweise, weblinks, siehe auch, literatur, quellen, anmerkungen",
        "notes et références, références, liens externes, voir aussi, bibliographie, articles connexes, annexes",
        "referencias, enlaces externos, véase también, bibliografía, notas, notas y referencias",
        "referências, ligações externas, ver também, bibliografia, leitura adicional",
        "note, collegamenti esterni, altri progetti, voci correlate, riferimenti",
        "referenties, externe links, zie ook, bronnen, literatuur",
        "примечания, ссылки, см. также, литература, источники",
        "przypisy, linki zewnętrzne, zobacz też",
        "脚注, 外部リンク, 関連項目, 参考文献, 参考资料, 外部链接, 参见",
    )
    for name in language.split(", ")
)


def plain_text(source: str, title: str, spaces: Spaces, removed: Removed, check: Check = lambda: None) -> str:
    """The text of a page: paragraphs, list items and headings, a line each. spaces: names of the wiki's namespaces.
    check: called every so often; what it raises ends the work.

    Left out and counted in `removed` are, beside all markup, tables, sections of references, links and notes, and
    headings that no text follows.
    """
    lines = _Lines(Inline(spaces, removed, check), removed)
    outer = Outer(source, removed).text()
    if spaces.variants:
        outer = _VARIANTS.sub(_one_variant, outer)
    for line in _joined(_without_quotes(_without_tables(outer.split("\n"), removed), removed)):
        lines.add(line)
    found = lines.ended()
    if found and found[0] == title.strip():
        removed.note(_TITLE_LINE, found.pop(0))
    return "\n".join(found)


def _without_tables(lines: list[str], removed: Removed) -> Iterator[str]:
    """The lines outside tables. Of a table that never ends only its rows are taken out."""
    open_at: list[int] = []
    spans: dict[int, int] = {}
    for number, line in enumerate(lines):
        start = line.lstrip(" \t:*#")
        if start.startswith("{|"):
            open_at.append(number)
        elif open_at and start.startswith("|}"):
            spans[open_at.pop()] = number
    number, in_rows = 0, False
    while number < len(lines):
        line = lines[number]
        start = line.lstrip(" \t:")
        if number in spans:
            last = spans[number]
            behind = lines[last].lstrip(" \t:*#").removeprefix("|}")
            removed.note("tables", "\n".join(lines[number : last + 1]).removesuffix(behind))
            number = last
            yield ""
            yield behind
        # Text too may begin with an exclamation mark: !Kung is a language.
        elif start.startswith(("{|", "|")) or (in_rows and start.startswith("!")):
            removed.note("rows of tables and templates that do not end", line)
            in_rows = True
        else:
            in_rows = in_rows and not start
            yield line
        number += 1


def _without_quotes(lines: Iterator[str], removed: Removed) -> Iterator[str]:
    """The lines without the quotes of bold and italic text, by MediaWiki's rules."""
    for line in lines:
        if "''" not in line:
            yield line
            continue
        parts = _QUOTES.split(line)
        # Two quotes are italic, three bold, five both; a fourth, and any past five, is an apostrophe.
        marks = [len(run) if len(run) < 4 else 3 if len(run) == 4 else 5 for run in parts[1::2]]
        if 3 in marks and all(sum(mark in (kind, 5) for mark in marks) % 2 for kind in (2, 3)):
            marks[_apostrophe(parts, marks)] = 2
        for place, mark in enumerate(marks):
            run = parts[2 * place + 1]
            parts[2 * place + 1] = run[mark:]
            removed.note("bold and italic quotes", run[:mark])
        yield "".join(parts)


def _apostrophe(parts: list[str], marks: list[int]) -> int:
    """Which bold mark is an apostrophe and italic: as in l'''Iliade'' behind a single letter, last behind a space."""

    def rank(place: int) -> int:
        before = parts[2 * place] + "'" * (len(parts[2 * place + 1]) - 3)
        return 2 if before.endswith(" ") else 0 if before[-2:-1] == " " else 1

    return min((place for place, mark in enumerate(marks) if mark == 3), key=rank)


def _one_variant(found: re.Match[str]) -> str:
    """What `-{zh-hans:...; zh-hant:...}-` shows, in the first script that it has; "" where it only sets a rule."""
    flags, bar, rest = found[1].partition("|")
    text = rest if bar else flags
    if bar and set(flags.replace(" ", "").upper()) <= set("HT+-;"):
        return ""
    rule = None if bar and "R" in flags else _RULE_OF_VARIANT.match(text)
    return text[rule.end() :].partition(";")[0].strip() if rule else text


def _joined(lines: Iterator[str]) -> Iterator[str]:
    """Lines whose links end on a later line are joined with it."""
    held: list[str] = []
    depth = 0
    for line in lines:
        if held and (len(held) == _MOST_JOINED or not line.strip() or line.startswith("=")):
            yield " ".join(held)
            held, depth = [], 0
        depth += line.count("[[") - line.count("]]")
        held.append(line)
        if depth <= 0:
            yield " ".join(held)
            held, depth = [], 0
    if held:
        yield " ".join(held)


@dataclass
class _Heading:
    level: int
    text: str


class _Lines:
    """Puts lines together: those of a paragraph, headings once text follows, and no sections of references."""

    def __init__(self, inline: Inline, removed: Removed) -> None:
        self._inline, self._removed = inline, removed
        self._text: list[str] = []
        self._paragraph: list[str] = []
        self._waiting: list[_Heading] = []
        self._apparatus: int | None = None

    def add(self, line: str) -> None:
        """Takes the next line of wikitext."""
        if "__" in line:
            line = _MAGIC.sub(lambda found: self._removed.note("magic words", found[0]), line)
        bare = line.strip()
        if bare.startswith("=") and (heading := _heading(bare)):
            self._end_paragraph()
            self._head(heading)
        elif self._apparatus is not None:
            if bare:
                self._removed.note("sections of references, links and notes", line, 0)
        elif not bare.strip(MARK):
            # A comment or template alone on its line does not part a paragraph, an empty line does.
            if not bare:
                self._end_paragraph()
        elif line[0] in _LIST or bare.startswith("----"):
            self._end_paragraph()
            self._put(_RULE.sub("", line.lstrip(_LIST), count=1) if bare.startswith("----") else line.lstrip(_LIST))
        else:
            self._paragraph.append(line)

    def ended(self) -> list[str]:
        """All lines of text, once the last line of wikitext was added."""
        self._end_paragraph()
        self._forget(1)
        return self._text

    def _end_paragraph(self) -> None:
        if self._paragraph:
            self._put(" ".join(self._paragraph))
            self._paragraph = []

    def _head(self, heading: _Heading) -> None:
        self._forget(heading.level)
        if self._apparatus is not None and heading.level > self._apparatus:
            self._removed.note("sections of references, links and notes", heading.text, 0)
            return
        self._apparatus = None
        heading.text = tidied(self._inline.text(heading.text).replace("\n", " "))
        if heading.text.rstrip(" :.").casefold() in _APPARATUS:
            self._apparatus = heading.level
            self._removed.note("sections of references, links and notes", heading.text)
        else:
            self._waiting.append(heading)

    def _forget(self, level: int) -> None:
        """Headings of this level or deeper, without text so far, head nothing."""
        while self._waiting and self._waiting[-1].level >= level:
            self._removed.note("headings without text", self._waiting.pop().text)

    def _put(self, wikitext: str) -> None:
        found = [tidy for line in self._inline.text(wikitext).split("\n") if (tidy := tidied(line))]
        if found:
            self._text += [heading.text for heading in self._waiting if heading.text]
            self._text += found
            self._waiting = []


def _heading(line: str) -> _Heading | None:
    """`== Title ==` of any level, or None."""
    inner = line.rstrip(f"{MARK} ")
    if not inner.endswith("=") or len(inner) < 3:
        return None
    before, behind = len(inner) - len(inner.lstrip("=")), len(inner) - len(inner.rstrip("="))
    level = min(before, behind, (len(inner) - 1) // 2, 6)
    return _Heading(level, inner[level : len(inner) - level].strip())
