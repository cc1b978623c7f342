"""Markup within a paragraph: links, tags and entities, parsed by mwparserfromhell and walked token by token.

Its nodes are built from these tokens at six times the cost of the tokens, so the tokens are read as they come. An
opening mark without its end makes the parser read the rest of the paragraph again, so its work is estimated as their
number times the length. A paragraph past the limit is cut at sentences; what is past it still is left out: no page can
be slow.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mwparserfromhell.parser import Parser, tokens

from bertsmith.corpus.wiki.outer import Removed
from bertsmith.corpus.wiki.page_time import Check

# Opening marks times characters: about a tenth of a second for a paragraph, and five seconds for a page.
_MOST_WORK, _MOST_PAGE_WORK = 2_000_000, 50_000_000
_OPENINGS = ("[", "<", "&", "{{", "://")
# Tags that MediaWiki or one of its extensions knows; any other is text, as in List<String>.
_KNOWN_TAGS = (
    "a abbr b bdi bdo big blockquote body br caption center ce chem cite code col colgroup data dd del dfn div "
    "dl dt em embed font form gallery graph h1 h2 h3 h4 h5 h6 hiero hr html i iframe imagemap img includeonly "
    "indicator input ins kbd li link mapframe maplink mark math meta noinclude nowiki ol onlyinclude p poem "
    "pre q rb ref references rp rt rtc ruby s samp score script section small source span strike strong style "
    "sub sup syntaxhighlight table tbody td templatedata templatestyles tfoot th thead time timeline tr "
    "translate tt u ul var wbr"
)
_LEFT_TAG = re.compile(rf"</?({_KNOWN_TAGS.replace(' ', '|')})\b[^<>]*>", re.IGNORECASE)
# Every wiki has names of its own for the namespace of files, and older ones that its dump does not list.
_MEDIA = re.compile(
    r"\.(?:jpe?g|png|svg|gif|webp|tiff?|xcf|pdf|djvu|og[agv]|opus|webm|mpe?g|mp[34]|midi?|wav|flac|stl)", re.IGNORECASE
)
_LEFT_BRACKETS = re.compile(r"\[\[|\]\]|\{\{+|\}\}+")
_BORDER = re.compile(r"\[\[|\]\]|[.,;!?] ")
_PIECE = 2000
_MARKUP = ("[", "<", "&", "{", "://", "mailto:")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]{2,})?|simple")
# Names that every wiki knows beside its own; the older ones of large wikis.
_FILES = {"file", "image", "media", "bild", "fichier", "archivo", "imagen", "immagine", "ficheiro", "imagem", "файл"}
_FILES |= {"datei", "изображение", "afbeelding", "bestand", "plik", "grafika", "ファイル", "画像", "文件", "图像"}
_CATEGORIES = {"category", "kategorie", "catégorie", "categoría", "categoria", "категория", "categorie", "kategoria"}
_NOT_SHOWN = {"ref", "references", "math", "gallery", "timeline", "table", "tr", "td", "th", "style", "script"}
_PARTING = {"br", "p", "hr", "div", "li", "blockquote", "center", "dd", "dt", "ol", "ul", "poem"}
_RAISED = str.maketrans("0123456789+-−=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿⁱ")
_RAISABLE = re.compile(r"[0-9+−-][0-9+−()=-]*|n|i")


_new_parser: Callable[[], Any] = Parser


@dataclass(frozen=True)
class Spaces:
    """The names of a wiki's namespaces for files and categories, "" where they are not known.

    variants: whether its language is written in several scripts.
    """

    file: str = ""
    category: str = ""
    variants: bool = False


@dataclass
class _Open:
    """Something that is open: what stands before its separators, and what was collected outside of it."""

    kind: type
    outside: list[str]
    held: list[str] = field(default_factory=list)


class Inline:
    """The markup within the paragraphs of one page. check: called before each that is parsed; may raise."""

    def __init__(self, spaces: Spaces, removed: Removed, check: Check) -> None:
        self._removed, self._check = removed, check
        self._files = _FILES | {spaces.file.casefold()} - {""}
        self._categories = _CATEGORIES | {spaces.category.casefold()} - {""}
        self._tokenizer = _new_parser()._tokenizer
        self._work = 0
        self._closers: dict[type, Callable[[_Open, str], str]] = {
            tokens.WikilinkClose: self._link,
            tokens.ExternalLinkClose: self._address,
            tokens.TagCloseClose: self._tag,
            tokens.TagCloseSelfclose: self._tag,
            tokens.HTMLEntityEnd: lambda opened, text: html.unescape(f"&{text};"),
            tokens.TemplateClose: lambda opened, text: self._removed.marked("templates", text),
            tokens.ArgumentClose: lambda opened, text: self._removed.marked("template parameters", text),
            tokens.CommentEnd: lambda opened, text: self._removed.marked("comments", text),
        }

    def text(self, wikitext: str) -> str:
        """Its plain text; MARK stands where something was taken out, a line feed where a tag parts lines."""
        if not any(opening in wikitext for opening in _MARKUP):
            return self._unmarked(wikitext)
        work = sum(map(wikitext.count, _OPENINGS)) * len(wikitext)
        if work > _MOST_WORK and len(pieces := _pieces(wikitext)) > 1:
            return "".join(map(self.text, pieces))
        self._work += work
        if work > _MOST_WORK or self._work > _MOST_PAGE_WORK:
            return self._removed.marked("paragraphs too entangled to parse", wikitext)
        self._check()
        return self._walk(self._tokenizer.tokenize(wikitext, 0, True))

    def _walk(self, found: list[Any]) -> str:
        """The text of a list of tokens, whose openings and ends always pair."""
        opened: list[_Open] = []
        parts: list[str] = []
        for token in found:
            kind = type(token)
            if kind is tokens.Text:
                parts.append(self._unmarked(token.text))
            elif kind in _OPENERS:
                opened.append(_Open(kind, parts))
                parts = []
            elif kind in _SEPARATORS:
                opened[-1].held.append(parts[0] if kind is tokens.TagCloseOpen and parts else "".join(parts))
                parts = []
            elif kind is tokens.HTMLEntityNumeric:
                parts.append("#")
            elif kind is tokens.HTMLEntityHex:
                parts.append(token.char)
            elif close := self._closers.get(kind):
                last = opened.pop()
                if kind is tokens.TagCloseSelfclose:
                    parts = parts[:1]
                last.outside.append(close(last, "".join(parts)))
                parts = last.outside
        for each in reversed(opened):
            parts = each.outside + each.held + parts
        return "".join(parts)

    def _unmarked(self, text: str) -> str:
        """Text without the markup that the parser took for text, since its other half is missing."""
        if "<" in text:
            text = _LEFT_TAG.sub(self._left_tag, text)
        if "[[" in text or "]]" in text or "{{" in text or "}}" in text:
            what = "brackets and braces without their other half"
            text = _LEFT_BRACKETS.sub(lambda found: self._removed.note(what, found[0]), text)
        return text

    def _left_tag(self, found: re.Match[str]) -> str:
        self._removed.note("tags without their other half", found[0])
        return "\n" if found[1].lower() in _PARTING else ""

    def _link(self, opened: _Open, text: str) -> str:
        target = (opened.held[0] if opened.held else text).strip()
        label = text if opened.held else None
        prefix, colon, rest = target.partition(":")
        space = prefix.strip().casefold() if colon else ""
        if space in self._files or (space and ":" not in rest and _MEDIA.fullmatch(rest[rest.rfind(".") :].rstrip())):
            return self._removed.marked("files and images", target + (label or ""))
        if space in self._categories:
            return self._removed.marked("categories", target)
        if space and rest and label is None and _LANGUAGE.fullmatch(prefix):
            return self._removed.marked("links to other languages", target)
        self._removed.note("links, their text kept", target if label is not None else "")
        if label is None:
            return target.removeprefix(":")
        # [[Paris (Texas)|]] shows Paris
        return label if label.strip() else re.sub(r"\s*\([^()]*\)$", "", rest or target).strip()

    def _address(self, opened: _Open, text: str) -> str:
        if opened.held:
            self._removed.note("external links, their text kept", opened.held[0])
            return text.strip()
        return self._removed.marked("addresses of external links", text)

    def _tag(self, opened: _Open, text: str) -> str:
        """held: the name and what stands within; nothing for a tag without content, whose name is `text`."""
        name = (opened.held[0] if opened.held else text).strip().lower()
        inner = opened.held[1] if len(opened.held) > 1 else ""
        if name in _NOT_SHOWN:
            return self._removed.marked("references" if name.startswith("ref") else "embedded objects", inner)
        self._removed.note("HTML tags, their text kept", f"<{name}>")
        if name in _PARTING:
            return f"\n{inner}\n"
        if name == "sup" and _RAISABLE.fullmatch(inner):
            return inner.translate(_RAISED)
        return inner


def _pieces(wikitext: str) -> list[str]:
    """A paragraph cut behind punctuation outside links, into pieces of some thousand characters."""
    pieces, start, depth = [], 0, 0
    for found in _BORDER.finditer(wikitext):
        depth += {"[[": 1, "]]": -1}.get(found[0], 0)
        if depth <= 0 and found.end() - start > _PIECE:
            pieces.append(wikitext[start : found.end()])
            start, depth = found.end(), 0
    return [*pieces, wikitext[start:]] if start < len(wikitext) else pieces


_OPENERS = {
    tokens.WikilinkOpen,
    tokens.ExternalLinkOpen,
    tokens.TagOpenOpen,
    tokens.HTMLEntityStart,
    tokens.TemplateOpen,
    tokens.ArgumentOpen,
    tokens.CommentStart,
}
_SEPARATORS = {tokens.WikilinkSeparator, tokens.ExternalLinkSeparator, tokens.TagCloseOpen, tokens.TagOpenClose}
