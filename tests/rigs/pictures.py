"""Functions for tests of pictures. They parse a picture as XML, and return its texts and shapes."""

from __future__ import annotations

from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: str) -> ET.Element:
    """Return the root of a picture. Raises ParseError if the picture is not well-formed XML."""
    return ET.fromstring(picture)  # noqa: S314 — the project's own


def texts(picture: str) -> str:
    """Return all text of a picture, tooltips too."""
    return "\n".join(parsed(picture).itertext())


def drawings(picture: str) -> list[ET.Element]:
    """Return the SVG drawings of a picture."""
    return list(parsed(picture).iter(f"{SVG}svg"))


def bars(drawing: ET.Element) -> list[tuple[float, float, str]]:
    """Return the start, the end and the fill of each rectangle."""
    found = []
    for rect in drawing.iter(f"{SVG}rect"):
        start = float(rect.get("x", ""))
        found.append((start, start + float(rect.get("width", "")), rect.get("fill", "")))
    return found
