"""Templates whose text is part of the sentence they stand in, such as {{lang|fr|Voilà}} or {{convert|3|km}}.

There are a million templates; these are those that the running text of articles has most often, by what they show.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

# Shows its first, second or third argument.
_FIRST = (
    "nowrap nobr small smaller big larger sc smallcaps angbr linktext vanchor visible_anchor abbr sup sub math mvar "
    "strong em code tt mono var u quote cquote bquote blockquote quotation nihongo flag flagcountry noitalic nobold "
    "zh-cn unicode polytonic pslink not_a_typo typo sic notatypo literal_translation bdo lrm-text dfn "
    "midsize resize_text allow_wrap no_wrap flagu ipa ipalink angbr_ipa nts railgauge keypress"
)
_SECOND = "lang transl script color colour font_color lang-text transliteration tooltip hover_title langx"
_FIXED = {
    "nbsp": " ",
    "spaces": " ",
    "space": " ",
    "thinsp": " ",
    "hairsp": " ",
    "'": "'",
    "'s": "'s",
    "snd": " – ",
    "spnd": " – ",
    "spaced_ndash": " – ",
    "ndash": "–",
    "en_dash": "–",
    "mdash": "—",
    "mdashb": "—",
    "em_dash": "—",
    "spaced_mdash": " — ",
    "dash": " – ",
    "·": " · ",
    "middot": " · ",
    "bullet": " • ",
    "!": "|",
    "=": "=",
    "pi": "π",
    "eqm": '"',
    "euro": "€",
    "gbp": "£",
    "aud": "A$",
    "min": "min",
    "ft": "ft",
}
_UNITS = {
    "km2": "km²",
    "m2": "m²",
    "cm2": "cm²",
    "m3": "m³",
    "km3": "km³",
    "sqmi": "sq mi",
    "sqkm": "km²",
    "sqft": "sq ft",
    "cuft": "cu ft",
    "C": "°C",
    "F": "°F",
    "C-change": "°C",
    "F-change": "°F",
    "km/h": "km/h",
    "kph": "km/h",
    "ftin": "ft",
    "lbs": "lb",
    "LT": "long tons",
    "ST": "short tons",
    "MT": "metric tons",
    "t": "t",
    "nmi": "nmi",
    "acre": "acres",
    "mi": "mi",
    "USgal": "US gal",
    "impgal": "imp gal",
}
_RANGES = {"to", "and", "or", "by", "x", "-", "–", "to(-)", "and(-)", "×", "+/-", "±"}
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_NUMBER = re.compile(r"[\d.,/+−-]+(?:e\d+)?$")
_NAMED = re.compile(r"\s*([\w -]{0,40}?)\s*=")
_LOWER_CASE = re.compile(r"\|\s*lc\s*=\s*[y1]")
_CODE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)?")
# A bar inside a link separates the link's own target and label.
_LINK_OR_BAR = re.compile(r"\[\[[^\[\]]*\]\]|\|")


def text_of(name: str, template: str, mark: str) -> str | None:
    """What the template shows, itself wikitext again, or None where it leaves none. template: all within its braces."""
    key = name.replace(mark, "").strip().replace(" ", "_").lower()
    if key in _FIXED:
        return _FIXED[key]
    show = _SHOWN.get(key) or (_first if key.startswith("lang-") else None)
    text = show(_arguments(template)) if show else None
    return text[:1].lower() + text[1:] if text and _LOWER_CASE.search(template) else text


def _arguments(template: str) -> list[str]:
    """Arguments without names, and those named 1, 2 ... or text, in their places."""
    found: dict[int, str] = {}
    place = 0
    for argument in _split_at_bars(template)[1:]:
        named = _NAMED.match(argument)
        if named is None:
            place += 1
            found.setdefault(place, argument.strip())
        elif named[1].isdecimal() and len(named[1]) < 3:
            found[int(named[1])] = argument[named.end() :].strip()
        elif named[1] in ("text", "quote"):
            found[1 if 1 not in found else 2] = argument[named.end() :].strip()
    return [found.get(index, "") for index in range(1, max(found, default=0) + 1)]


def _split_at_bars(template: str) -> list[str]:
    bars = [found.start() for found in _LINK_OR_BAR.finditer(template) if found[0] == "|"]
    return [template[begin + 1 : end] for begin, end in itertools.pairwise((-1, *bars, len(template)))]


def _first(arguments: list[str]) -> str | None:
    return arguments[0] if arguments else None


def _second(arguments: list[str]) -> str | None:
    return arguments[1] if len(arguments) > 1 else None


def _convert(arguments: list[str]) -> str | None:
    """{{convert|5|to|10|km|mi}}: the quantity as it was given, not what it is converted to."""
    shown: list[str] = []
    for argument in arguments:
        if _NUMBER.match(argument) or (shown and argument in _RANGES):
            shown.append(argument.partition("(")[0])
        elif shown:
            return f"{' '.join(shown)} {_UNITS.get(argument, argument)}"
        else:
            return None
    return None


def _fraction(arguments: list[str]) -> str | None:
    match arguments:
        case [below]:
            return f"1/{below}"
        case [above, below]:
            return f"{above}/{below}"
        case [whole, above, below]:
            return f"{whole} {above}/{below}"
    return None


def _link_elsewhere(arguments: list[str]) -> str | None:
    """{{ill|Name|de|...}}, in older pages {{ill|de|Name|...}}."""
    return _second(arguments) if arguments and _CODE.fullmatch(arguments[0]) else _first(arguments)


def _as_of(arguments: list[str]) -> str | None:
    if not arguments:
        return None
    year, month, day = (*arguments, "", "")[:3]
    named = _MONTHS[int(month) - 1] if month.isdecimal() and 1 <= int(month) <= 12 else month
    return " ".join(["As of", *filter(None, (day, named, year))])


def _circa(arguments: list[str]) -> str | None:
    return f"c. {arguments[0]}" if arguments and arguments[0] else "c."


_SHOWN: dict[str, Callable[[list[str]], str | None]] = {
    **dict.fromkeys(_FIRST.split(), _first),
    **dict.fromkeys(_SECOND.split(), _second),
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("ill", "interlanguage_link", "link-interwiki"), _link_elsewhere),
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    **dict.fromkeys(("circa", "c.", "ca."), _circa),
    **dict.fromkeys(("chem", "chem2"), "".join),
    "as_of": _as_of,
    "val": _first,
}
