"""Wikitext as the text of a page: what is kept, what is removed and counted, and that no page is slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertsmith.corpus.wiki.holes import tidied
from bertsmith.corpus.wiki.outer import MARK, Outer
from bertsmith.corpus.wiki.text import Removed, Spaces, plain_text


def text_of(source: str, title: str = "") -> str:
    return plain_text(source, title, Spaces("Datei", "Kategorie"), Removed())


def counts(source: str) -> dict[str, int]:
    removed = Removed()
    plain_text(source, "", Spaces(), removed)
    return {what: count for what, (count, _) in removed.items()}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("'''Bold''', ''italic'' and '''''both'''''.", "Bold, italic and both."),
        ("The dog''s'' and rock ''''n'''' roll", "The dogs and rock 'n' roll"),
        ("[[Paris]] and [[Berlin|the city]]s, [[a|b|c]], [[:Category:X]]", "Paris and the citys, b|c, Category:X"),
        ("[[Paris (Texas)|]] of [[Help:Index|]]", "Paris of Index"),
        ("a [[File:x.jpg|thumb|10px|A [[link]] in it]] b", "a b"),
        ("a [[Datei:x.jpg|mini|Bild]][[Kategorie:Y]][[image:z.png]] b [[fr:Paris]] [[zh-min-nan:Q]]", "a b"),
        ("[[File:x.jpg|thumb|a caption\nover [[two]] lines]]After.", "After."),
        ("[http://a.b the ''site''] [http://a.b] is [https://c.d here].", "the site is here."),
        ('x<ref>Note {{cite|a=b}} [[l]]</ref>, y<ref name=a/> z<ref name="b" />.', "x, y z."),
        ("a<!-- no --> b <!-- never\nended", "a b"),
        ("10<sup>6</sup> m<sup>−2</sup>, H<sub>2</sub>O, 4<sup>th</sup>", "10⁶ m⁻², H2O, 4th"),
        ("&nbsp;a&amp;b &#x41;&#66; &lt;tag&gt; &bogus; AT&T", "a&b AB <tag> &bogus; AT&T"),
        ("<nowiki>[[a]] '''b''' {{c}}</nowiki>", "[[a]] '''b''' {{c}}"),
        ('one<br>two<br/>three <div class="x">four</div>', "one\ntwo\nthree\nfour"),
        ("<math>x^2 < 3</math> is, where <math>y</math>, small", "is, where, small"),
        ("<gallery>\nFile:a.jpg|b\n</gallery>a<source lang=c>int x;</source>", "a"),
        ("word ( {{x}} ) and (a {{x}}; b), {{x}}, c {{x}}. ( d )", "word and (a; b), c. ( d )"),
        ("{{Infobox\n| a = {{b}}\n| c = [[d]]\n}}\nText {{tl|x}}.", "Text."),
        ("{{lang|fr|Voilà}} {{convert|3|to|5.5|km2|mi}} {{nowrap|1=a=b}}", "Voilà 3 to 5.5 km² a=b"),
        ("{{As of|2014|5|lc=y}} {{frac|3|4}} {{ill|de|Ding}}{{'s}} {{lang-de|[[a|b]]}}", "as of May 2014 3/4 Ding's b"),
        (
            "{{circa|1900}}{{snd}}{{chem|H|2|O}} {{val|1.5|u=m}} {{IPA|[a]}} {{ill|Ding|de|X}}",
            "c. 1900 – H2O 1.5 m [a] Ding",
        ),
        ("{| class=x\n|-\n| a {| b |} \n{|\n| c\n|}\n|}\nText", "Text"),
        ("a __NOTOC__ b\n----\nc", "a b\nc"),
        ("* one\n** two\n# three\n; four : five\n: six", "one\ntwo\nthree\nfour : five\nsix"),
        ("First line\nsecond line\n\nthird", "First line second line\nthird"),
        ("{{{parameter|default}}} a {{#if:x|y}} {{PAGENAME}} b {{DEFAULTSORT:c}}", "a b"),
        ("{{convert|5|ft|10|in|m}} tall, {{cvt|5|-|10|km|0}}, {{convert|5|mi|1}}", "5 ft 10 in tall, 5–10 km, 5 mi"),
        ("{{val|3|0.2|e=5|u=m}} {{e|-6}} x{{sup|2}} {{unité|12|km|2}}", "3±0.2×10⁵ m ×10⁻⁶ x² 12 km²"),
        (
            "{{GBP|5}} {{US$|7 million|1990}} {{euro}} {{formatnum:1234}} {{uc:a}}{{lc:{{x}}}}",
            "£5 US$7 million € 1234 A",
        ),
        (
            "{{仮リンク|東京湾|en|X}} {{нп5|A|B|en}} {{нп5|A}} {{s-|XIX|e}} {{date|1|mai|1900}}",
            "東京湾 B A XIXe siècle 1 mai 1900",
        ),
        ("said:{{quote|To be|X}}and left<li>x<li>y", "said:\nTo be\nand left\nx\ny"),
        ("a<pre>b</pre>c<table>d</table>e<source inline>f</source>g", "a c eg"),
        ("L'''Iliade'' est\nl'''or''' et\nmany a ''b'''s c", "L'Iliade est lor et many a b's c"),
        ("[[صورة:a b.jpg|تصغير|x]] [[Kép:A.SVG]] [[CSI: Miami|CSI]] [[a.jpg]]", "CSI a.jpg"),
        ("{|\n|a\n|} behind\n\n!Kung is", "behind\n!Kung is"),
        ("a\n{|\n|b\n|}\nc", "a\nc"),
        ("== A<br>B<li> ==\nc", "A B\nc"),
        ("List<String> <y> a</small>", "List<String> <y> a"),
        ("See http://a.b/c_(d) now", "See now"),
        ("two  spaces\u00a0and a\ttab", "two spaces and a tab"),
        ("", ""),
        ("{{only|templates}}\n[[Category:None]]\n* {{x}}, {{y}}", ""),
    ],
)
def test_text_of_markup(source: str, text: str) -> None:
    assert text_of(source) == text


def test_one_script_of_several_is_shown_where_the_language_has_them() -> None:
    source = "-{zh-hans:中国; zh-hant:中國}-的-{T|zh:北京}--{A|zh-cn:软件;zh-tw:軟體}-和-{乾}-隆-{R|zh:y}-"
    assert plain_text(source, "", Spaces(variants=True), Removed()) == "中国的软件和乾隆zh:y"
    assert text_of("3-{4-[a]phenyl}-1H") == "3-{4-[a]phenyl}-1H"


def test_headings_and_sections() -> None:
    source = "Lead.\n== History ==\n=== Early ===\nText.\n=== Late ===\n== Empty ==\n== See also ==\n* [[x]]\n"
    source += "=== Sub ===\ny\n== Later ==<!-- c -->\nMore.\n==Références==\n{{reflist}}"
    assert text_of(source) == "Lead.\nHistory\nEarly\nText.\nLater\nMore."
    found = counts(source)
    assert found["headings without text"] == 2
    assert found["sections of references, links and notes"] == 2


def test_a_first_line_that_repeats_the_title_goes() -> None:
    assert text_of("'''Tree'''\n\nA plant.", "Tree") == "A plant."
    assert text_of("Tree\n\nA plant.", "Oak") == "Tree\nA plant."


def test_what_is_removed_is_counted() -> None:
    source = (
        "{{a}} {{lang|fr|b}} <!-- c --> <ref>d</ref> [[File:e]] [[Category:f]] <math>g</math> '''h''' __TOC__ [[i]]"
    )
    source += " [http://j] [http://k l] <small>m</small>\n{|\n|n\n|}\n<b>o {{{p}}} ]] {{q"
    assert counts(source) == {
        "templates": 1,
        "templates whose text was kept": 1,
        "comments": 1,
        "references": 1,
        "files and images": 1,
        "categories": 1,
        "formulas": 1,
        "bold and italic quotes": 2,
        "magic words": 1,
        "links, their text kept": 1,
        "addresses of external links": 1,
        "external links, their text kept": 1,
        "HTML tags, their text kept": 1,
        "tables": 1,
        "tags without their other half": 1,
        "template parameters": 1,
        "brackets and braces without their other half": 2,
    }


def test_what_does_not_end_costs_little() -> None:
    assert text_of("a\n{| class=x\n| row\n! head\nb") == "a b"
    assert text_of("a {{never ended b") == "a never ended b"
    assert text_of("a <ref>b") == "a b"
    assert text_of("a }} ]] b") == "a b"
    assert text_of("a [[b\n\nc") == "a b\nc"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"a ({MARK}) b", "a b"),
        (f"a ({MARK}), b", "a, b"),
        (f"a ({MARK}, {MARK}) b", "a b"),
        (f"a ({MARK}; b)", "a (b)"),
        (f"a (b, {MARK}) c", "a (b) c"),
        (f"a, {MARK}, {MARK}, b", "a, b"),
        (f"a {MARK}. B", "a. B"),
        (f"a.{MARK} B", "a. B"),
        (f"a {MARK} b", "a b"),
        ("( a ) , b", "( a ) , b"),
        (f" {MARK}, {MARK} .", ""),
    ],
)
def test_holes_are_closed_and_nothing_else(line: str, text: str) -> None:
    assert tidied(line) == text


def test_braces_pair_as_in_mediawiki() -> None:
    removed = Removed()
    assert Outer("a{{b{{{c}}}d}}e{{{{f}}}}g", removed).text() == f"a{MARK}e{{{MARK}}}g"
    assert Outer("{{a}b}} {c} }} {{", Removed()).text() == f"{MARK} {{c}} }}}} {{{{"


MARKUP = ["{{", "}}", "{{{", "[[", "]]", "[http://a ", "]", "|", "{|\n", "\n|}", "<b>", "</b>", "<ref>", "</ref>", "''"]
MARKUP += [
    "'''",
    "== a",
    "==\n",
    "\n",
    "\n\n",
    "<!--",
    "-->",
    "[[File:a|",
    "{{lang|fr|",
    "<div a='",
    "&",
    "(",
    ")",
    ",",
]
MARKUP += [" ", "word ", "<nowiki>", "</nowiki>", "<table>", "__TOC__", "{{a}}", "<ref/>", "\u00e9", "* "]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(MARKUP), max_size=25).map("".join))
@example("<nowiki>[[File:a|[[File:a|</nowiki>")
def test_whatever_is_written_comes_out_without_marks_and_pairs(source: str) -> None:
    text = text_of(source)
    assert MARK not in text
    literal = (part.partition("</nowiki>")[0] for part in source.split("<nowiki>")[1:])
    assert text.count("[[") <= sum(part.count("[[") for part in literal), "what is not markup stays as it is"
    assert "  " not in text
    assert "\n\n" not in text


ABSURD = [
    "{{",
    "[[",
    "{{a|",
    "[[a|",
    "{{lang|fr|a ",
    "[http://a ",
    "{|\n",
    "<b>",
    '<div a="',
    "<ref>",
    "<!--",
    "''[[",
    "&",
]
ABSURD += ["[[File:a|[[", "<table>", "\n*", "<nowiki>", "({{a}},", "{{a}}", "{{quote|{{a}}", "== a", "|", "http://a "]


@pytest.mark.parametrize("closed", [False, True])
def test_absurd_pages_take_no_longer_than_their_length(closed: bool) -> None:
    """Each is quadratic or worse for a parser that goes back: hours for some."""
    slowest = 0.0
    for unit in ABSURD:
        source = unit * (100_000 // len(unit))
        if closed:
            source += "x" + unit.replace("{", "}").replace("[", "]").replace("<", "</") * (100_000 // len(unit))
        started = time.process_time()
        text_of(source)
        slowest = max(slowest, time.process_time() - started)
    assert slowest < 3, "seconds for 200 kB; about 0.2 on an idle machine"


def test_a_paragraph_too_entangled_to_parse_is_left_out_and_the_rest_stays() -> None:
    source = f"Before.\n\n{'[[a' * 3000}\n\nAfter."
    assert text_of(source) == "Before.\nAfter."
    assert counts(source)["paragraphs too entangled to parse"] == 1
    links = "A [[long|very long]] list of [[links]], and more. " * 1500
    assert text_of(links) == ("A very long list of links, and more. " * 1500).strip()


def test_white_space_in_a_template_costs_its_length() -> None:
    started = time.process_time()
    assert text_of(f"{{{{lang|fr|{' ' * 30_000}x}}}}") == "x"
    assert time.process_time() - started < 3, "it was quadratic"


def test_templates_nested_deeper_than_mediawiki_shows() -> None:
    deep = "{{lang|fr|" * 60 + "x" + "}}" * 60
    assert text_of(f"a {deep} b") == "a b"
    assert text_of("{{lang|fr|" * 5 + "x" + "}}" * 5) == "x"
