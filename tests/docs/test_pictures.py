"""Goal: the pictures of docs/notebooks.md are those that notebooks show. Method: draw them again, and compare."""

from __future__ import annotations

import pytest

from tests.rigs.pictures import parsed
from tools.draw_pictures import ROOT, pictures


@pytest.mark.parametrize(("name", "drawn"), pictures().items(), ids=list(pictures()))
def test_a_picture_is_current(name: str, drawn: str) -> None:
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == drawn, "run: .venv/bin/python -m tools.draw_pictures"
    assert parsed(committed).get("viewBox")
    assert f"({name})" in (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
