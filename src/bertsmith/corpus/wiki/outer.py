"""What is taken out of wikitext first, because it may span lines and nest: comments, embedded objects, templates.

This is what MediaWiki's own preprocessor does first, with the same rules for braces: one pass with a stack, so that no
nesting, closed or not, makes it slow. A template whose text belongs to the sentence leaves that text, any other a mark.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from bertsmith.corpus.wiki.templates import text_of

# Stands where something was removed. XML holds no such character, so no text does.
MARK = "\x01"
# Deeper templates leave no text; MediaWiki shows none beyond this depth either.
_DEEPEST = 40

_OBJECTS = {
    "references": "ref references",
    "formulas": "math chem ce",
    "galleries": "gallery imagemap",
    "code blocks": "source syntaxhighlight pre",
    "tables": "table",
    "embedded objects": "timeline score hiero graph mapframe maplink inputbox templatedata categorytree indicator "
    "templatestyles section includeonly style script dynamicpagelist listing quiz rss charinsert phonos",
}
# Blocks of their own, so that what stands before and behind one is never a word together.
_BLOCKS = {"galleries", "code blocks", "tables"}
_INLINE = re.compile(r"\binline\b", re.IGNORECASE)
# Functions of the parser that show what they are given.
_SHOWING: dict[str, Callable[[str], str]] = {
    "formatnum": str.strip,
    "lc": str.lower,
    "uc": str.upper,
    "lcfirst": lambda text: text[:1].lower() + text[1:],
    "ucfirst": lambda text: text[:1].upper() + text[1:],
}
_WHAT = {name: what for what, names in _OBJECTS.items() for name in names.split()}
_TOKEN = re.compile(
    rf"<!--|\{{{{+|\}}}}+|<({'|'.join(sorted(_WHAT, key=len, reverse=True))}|nowiki)\b([^<>]*)>", re.IGNORECASE
)
_LITERAL = str.maketrans({char: f"&#{ord(char)};" for char in "&<>[]{}|'=*#:;_~!-\n"})


class Removed(dict[str, tuple[int, int]]):
    """What was removed from a page: how often, and how many bytes it had."""

    def note(self, what: str, text: str, count: int = 1) -> str:
        """Counts the text under `what`; gives nothing, for it to stand instead."""
        before, size_bytes = self.get(what, (0, 0))
        self[what] = (before + count, size_bytes + (len(text) if text.isascii() else len(text.encode())))
        return ""

    def marked(self, what: str, text: str) -> str:
        """As `note`, but gives MARK, to stand instead."""
        self.note(what, text)
        return MARK


@dataclass
class _Braces:
    """An open run of braces and what stands behind it."""

    count: int
    inner: list[str] = field(default_factory=list)


class Outer:
    """Takes the comments, references and other embedded objects, and templates out of a page."""

    def __init__(self, source: str, removed: Removed) -> None:
        self._source, self._removed = source, removed
        self._out: list[str] = []
        self._open: list[_Braces] = []
        self._endless: set[str] = set()

    def text(self) -> str:
        """The wikitext without them; marks stand in their places."""
        source, position = self._source, 0
        while found := _TOKEN.search(source, position):
            self._put(source[position : found.start()])
            token, position = found[0], found.end()
            if token[0] == "{":
                self._open.append(_Braces(len(token)))
            elif token[0] == "}":
                self._close(len(token))
            elif token == "<!--":
                position = self._comment(found)
            else:
                position = self._object(found)
        self._put(source[position:])
        left = chain.from_iterable(("{" * braces.count, *braces.inner) for braces in self._open)
        return "".join(chain(self._out, left))

    def _put(self, text: str) -> None:
        if text:
            (self._open[-1].inner if self._open else self._out).append(text)

    def _close(self, count: int) -> None:
        """Pairs closing braces with the open ones, threes before twos, as MediaWiki does."""
        while count >= 2 and self._open:
            braces = self._open[-1]
            used = 3 if count >= 3 and braces.count >= 3 else 2
            inner = "".join(braces.inner)
            instead = self._removed.marked("template parameters", inner) if used == 3 else self._template(inner)
            count -= used
            braces.count -= used
            if braces.count >= 2:
                braces.inner = [instead]
            else:
                self._open.pop()
                self._put("{" * braces.count + instead)
        self._put("}" * count)

    def _template(self, text: str) -> str:
        name = text.partition("|")[0].strip()
        function, colon, shown = name.partition(":")
        if MARK not in name and (show := _SHOWING.get(function.rstrip().lower())):
            self._removed.note("templates whose text was kept", text)
            return show(shown.strip())
        if name.startswith("#") or (colon and function.isupper()):
            return self._removed.marked("magic words", text)
        kept = text_of(name, text, MARK) if len(self._open) <= _DEEPEST else None
        if kept is None:
            return self._removed.marked("templates", text)
        self._removed.note("templates whose text was kept", text)
        return kept

    def _comment(self, found: re.Match[str]) -> int:
        end = self._source.find("-->", found.end())
        end = len(self._source) if end < 0 else end + 3
        self._removed.note("comments", self._source[found.start() : end])
        return end

    def _object(self, found: re.Match[str]) -> int:
        """Takes out an element up to its end tag; returns where to go on."""
        name, source = found[1].lower(), self._source
        if found[2].endswith("/") or (name == "nowiki" and found[2].rstrip().endswith("/")):
            if name != "nowiki":
                self._removed.note(_WHAT[name], found[0])
                self._put(MARK)
            return found.end()
        end = None if name in self._endless else self._end_of(name, found.end())
        if end is None:
            self._endless.add(name)
            self._removed.note("tags without their other half", found[0])
            return found.end()
        if name == "nowiki":
            # Its characters must not be taken for markup later on.
            self._put(html.unescape(source[found.end() : end[0]]).translate(_LITERAL))
        else:
            self._removed.note(_WHAT[name], source[found.start() : end[1]])
            self._put(f"{MARK}\n" if _WHAT[name] in _BLOCKS and not _INLINE.search(found[2]) else MARK)
        return end[1]

    def _end_of(self, name: str, position: int) -> tuple[int, int] | None:
        """Begin and end of the end tag; tables nest, other elements do not."""
        depth = 1
        for found in re.compile(rf"<(/?){name}\b[^<>]*>", re.IGNORECASE).finditer(self._source, position):
            if found[1]:
                depth -= 1
                if not depth or name != "table":
                    return found.start(), found.end()
            elif name == "table":
                depth += 1
        return None
