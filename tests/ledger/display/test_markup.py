"""Goal: a picture is well-formed, escapes every text and is readable in light and dark. Method: odd texts, parsed; and
the contrast of each colour by WCAG's formula.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.display.markup import COLOURS, card, element, soft_line, svg, written
from tests.rigs.pictures import parsed, texts

ODD = ["<script>alert(1)</script>", "a&b", "\"'><img src=x onerror=y>", "]]>", "\u202egnp", "\x00\x1b[31m", "\ud800"]


@pytest.mark.parametrize("text", ODD)
def test_odd_text_is_escaped_in_text_and_attributes(text: str) -> None:
    picture = written(card(text, text, soft_line(text), svg(1, text), problem=text))
    root = parsed(picture)
    assert {each.tag.rpartition("}")[2] for each in root.iter()} == {"div", "b", "span", "svg"}
    assert not {name for each in root.iter() for name in each.attrib if name.startswith("on")}
    picture.encode()
    assert "\u202e" not in picture
    assert "\x1b" not in picture


@given(st.text())
def test_any_text_gives_well_formed_xml(text: str) -> None:
    picture = written(element("div", text, title=text))
    assert parsed(picture).text is not None or not text
    assert "<" not in picture[4:].partition(">")[0], "not within an attribute"


def test_a_text_stays_what_it_is() -> None:
    assert texts(written(element("b", "Ware ≤ 5 & <gut> 'ä' 漢"))) == "Ware ≤ 5 & <gut> 'ä' 漢"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
@pytest.mark.parametrize("name", sorted(COLOURS))
def test_each_colour_stands_out_on_light_and_dark(name: str, page: str) -> None:
    low, high = sorted([luminance(COLOURS[name]), luminance(page)])
    assert (high + 0.05) / (low + 0.05) >= 3
