"""Elements of a picture: HTML and SVG that are well-formed XML, with every text escaped.

Rules
- A picture has no style sheet, script, id or address. So pictures of one page do not disturb each other, and a
  notebook that forbids scripts shows them.
- Text has the colour of the page around it. Each fill has a contrast of 3:1 or more on white and on near-black. So a
  picture is readable in light and dark themes, and nothing has to detect the theme.
- Characters that are invisible, or that XML forbids, are shown as Python's escapes.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from pyspark_ledger.ledger.hidden_characters import visible

Element = ET.Element
WIDTH = 720
"""Width of the drawings in the units of their coordinates. A narrow page scales them down."""

COLOURS = {
    "table": "#6b80d6",
    "bucket": "#3b8ec4",
    "both": "#2c948c",
    "local": "#4b8f3f",
    "open": "#b3791a",
    "hole": "#cb5286",
    "bad": "#d2504a",
    "line": "#3d8f6d",
}
SOFT = "opacity:.72"
_FONT = "font:13px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif"
_FORBIDDEN = re.compile("[\ufffe\uffff]")


def element(tag: str, *children: Element | str, **attributes: str | float) -> Element:
    """Return an element with these children. Texts must come before elements.

    In the name of an attribute, `stroke_width` becomes `stroke-width`. An underscore at the end is removed: `for_`
    becomes `for`, which is a word of Python.
    """
    made = ET.Element(tag)
    for name, value in attributes.items():
        text = value if isinstance(value, str) else f"{round(value, 2):g}"
        made.set(name.rstrip("_").replace("_", "-"), shown(text))
    for child in children:
        if isinstance(child, str):
            made.text = (made.text or "") + shown(child)
        else:
            made.append(child)
    return made


def shown(text: str) -> str:
    """Return text as a picture shows it: hidden and forbidden characters are Python's escapes."""
    return _FORBIDDEN.sub(lambda match: repr(match[0])[1:-1], visible(text))


def svg(height: float, label: str, *children: Element, width: float = WIDTH) -> Element:
    """Return a drawing of `width` by `height` units. `label` is what a screen reader says."""
    return element(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        style="display:block;max-width:100%;height:auto;overflow:visible",
    )


def bar(x: float, y: float, width: float, height: float, title: str = "", **attributes: str | float) -> Element:
    """Return a rectangle with a tooltip."""
    tip = [element("title", title)] if title else []
    return element("rect", *tip, x=x, y=y, width=max(width, 0), height=height, **attributes)


def card(title: str, soft: str, *children: Element, problem: str = "") -> Element:
    """Return a picture with a heading: a title, soft text beside it, and a problem below, if there is one."""
    heading = element("div", element("b", title), element("span", f" {soft}", style=SOFT))
    lines = [element("div", f"⚠ {problem}", style=f"color:{COLOURS['bad']}")] if problem else []
    return element("div", heading, *lines, *children, style=f"{_FONT};max-width:{WIDTH}px;overflow-wrap:anywhere")


def soft_line(text: str) -> Element:
    """Return a line of soft text."""
    return element("div", text, style=f"{SOFT};font-size:12px")


def written(root: Element) -> str:
    """Return the text of a picture. It is valid as HTML and as XML."""
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)
