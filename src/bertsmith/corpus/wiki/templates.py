"""Templates whose text is part of the sentence they stand in, such as {{lang|fr|Voilà}} or {{convert|3|km}}.

There are a million templates; these are those that the running text of articles has most often, by what they show.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

# Shows its first argument, or its second.
_FIRST = (
    "nowrap nobr esd small smaller big larger sc smallcaps angbr linktext vanchor visible_anchor abbr sub math mvar "
    'strong em code tt mono var u " '
    "nihongo flag flagcountry noitalic nobold "
    "zh-cn unicode polytonic pslink not_a_typo typo sic notatypo literal_translation bdo lrm-text dfn "
    "仮リンク lien link-en link-de link-fr "
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
    "kph": "km/h",
    "ftin": "ft",
    "lbs": "lb",
    "LT": "long tons",
    "ST": "short tons",
    "MT": "metric tons",
    "acre": "acres",
    "USgal": "US gal",
    "impgal": "imp gal",
}
_RANGES = {"to", "and", "or", "by", "x", "-", "–", "to(-)", "and(-)", "×", "+/-", "±"}
# Units that follow a larger one: 5 ft 10 in.
_SMALLER_UNITS = {"in", "ft", "yd", "oz", "lb", "cwt", "qtr", "chain"}
_CURRENCIES = {
    **dict.fromkeys(("gbp", "£"), "£"),
    **dict.fromkeys(("euro", "eur", "€"), "€"),
    **dict.fromkeys(("usd", "us$"), "US$"),
    **dict.fromkeys(("aud", "a$"), "A$"),
    **dict.fromkeys(("cad", "ca$"), "CA$"),
    **dict.fromkeys(("inr", "₹"), "₹"),
    **dict.fromkeys(("jpy", "¥"), "¥"),
}
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_NUMBER = re.compile(r"[\d.,/+−-]+(?:e\d+)?$")
_NAME = re.compile(r"[\w -]{0,40}")
_LOWER_CASE = re.compile(r"\|\s*lc\s*=\s*[y1]")
_ROMAN = re.compile(r"[IVXL]+")
_CODE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)?")
# A bar inside a link separates the link's own target and label.
_LINK_OR_BAR = re.compile(r"\[\[[^\[\]]*\]\]|\|")


def text_of(name: str, template: str, mark: str) -> str | None:
    """What the template shows, itself wikitext again, or None where it leaves none. template: all within its braces."""
    key = name.replace(mark, "").strip().replace(" ", "_").lower()
    if key in _FIXED:
        return _FIXED[key]
    show = _SHOWN.get(key) or (_first if key.startswith("lang-") else None)
    if show is None:
        return None
    arguments, named = _arguments(template)
    text = _value(arguments, named) if key == "val" else show(arguments)
    return text[:1].lower() + text[1:] if text and _LOWER_CASE.search(template) else text


def _arguments(template: str) -> tuple[list[str], dict[str, str]]:
    """Arguments without names, and those named 1, 2 ... or text, in their places; and the others by their names."""
    found, others = dict[int, str](), dict[str, str]()
    place = 0
    for argument in _split_at_bars(template)[1:]:
        before, equals, value = argument.partition("=")
        name, value = before.strip(), value.strip()
        if not equals or not _NAME.fullmatch(name):
            place += 1
            found.setdefault(place, argument.strip())
        elif name.isdecimal() and len(name) < 3:
            found[int(name)] = value
        elif name in ("text", "quote"):
            found[1 if 1 not in found else 2] = value
        else:
            others[name] = value
    return [found.get(index, "") for index in range(1, max(found, default=0) + 1)], others


def _split_at_bars(template: str) -> list[str]:
    bars = [found.start() for found in _LINK_OR_BAR.finditer(template) if found[0] == "|"]
    return [template[begin + 1 : end] for begin, end in itertools.pairwise((-1, *bars, len(template)))]


def _first(arguments: list[str]) -> str | None:
    return arguments[0] if arguments else None


def _second(arguments: list[str]) -> str | None:
    return arguments[1] if len(arguments) > 1 else None


def _quote(arguments: list[str]) -> str | None:
    """A block of its own, whatever it stands beside."""
    return f"<blockquote>{arguments[0]}</blockquote>" if arguments else None


def _convert(arguments: list[str]) -> str | None:
    """{{convert|5|to|10|km|mi}}: the quantity as it was given, not what it is converted to."""
    shown, quantity = list[str](), ""
    for place, argument in enumerate(arguments):
        if quantity and argument in _RANGES:
            quantity += "–" if argument in ("-", "–") else f" {argument.partition('(')[0]} "
        elif _NUMBER.match(argument):
            quantity += argument if not quantity or quantity[-1] in " –" else f" {argument}"
        elif quantity:
            shown.append(f"{quantity} {_UNITS.get(argument, argument)}")
            quantity = ""
            further = arguments[place + 1 : place + 3]
            if len(further) < 2 or not _NUMBER.match(further[0]) or further[1] not in _SMALLER_UNITS:
                break
        else:
            return None
    return " ".join(shown) or None


def _value(arguments: list[str], named: dict[str, str]) -> str | None:
    """{{val|1.5|0.2|e=5|u=m}}: 1.5±0.2×10⁵ m."""
    if not arguments:
        return None
    power = f"×10<sup>{named['e']}</sup>" if named.get("e") else ""
    unit = named.get("u") or named.get("ul") or ""
    return f"{'±'.join(arguments[:2])}{power} {unit}".rstrip()


def _with_unit(arguments: list[str]) -> str | None:
    """{{unité|12|km|2}}: 12 km²."""
    number, unit, power = (*arguments, "", "", "")[:3]
    return f"{number} {unit}{f'<sup>{power}</sup>' if power else ''}".strip() or None


def _date(arguments: list[str]) -> str | None:
    """{{date|1|janvier|1900}}, or {{date|1 janvier 1900}}."""
    return " ".join(filter(None, arguments[:3])) if arguments and len(arguments[0]) < 3 else _first(arguments)


def _century(arguments: list[str]) -> str | None:
    """{{s-|XIX|e}}; the Russian template of that name keeps its text on one line."""
    if not arguments or not _ROMAN.fullmatch(arguments[0]):
        return _first(arguments)
    return f"{arguments[0]}{arguments[1] if len(arguments) > 1 else 'e'} siècle"


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


def _label_second(arguments: list[str]) -> str | None:
    """{{нп5|page|label|...}}, where the label may be empty."""
    return _second(arguments) or _first(arguments)


def _raised(before: str) -> Callable[[list[str]], str | None]:
    return lambda arguments: f"{before}<sup>{arguments[0]}</sup>" if arguments else None


def _money(symbol: str) -> Callable[[list[str]], str | None]:
    return lambda arguments: symbol + "".join(arguments[:1])


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
    **dict.fromkeys(("нп", "нп1", "нп2", "нп3", "нп4", "нп5", "не_переведено", "iw"), _label_second),
    **dict.fromkeys(("quote", "cquote", "bquote", "blockquote", "quotation"), _quote),
    **dict.fromkeys(("unité", "unite", "unidad", "nombre", "nb", "число", "num"), _with_unit),
    **dict.fromkeys(("date", "date-"), _date),
    **dict.fromkeys(("s", "s-"), _century),
    **dict.fromkeys(("e", "x10^"), _raised("×10")),
    "10^": _raised("10"),
    "sup": _raised(""),
    **{name: _money(symbol) for name, symbol in _CURRENCIES.items()},
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    **dict.fromkeys(("circa", "c.", "ca."), _circa),
    **dict.fromkeys(("chem", "chem2"), "".join),
    "as_of": _as_of,
    "val": _first,
}
