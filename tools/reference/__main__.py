"""Write all generated pages and `conf/broker.toml`: `python -m tools.reference`."""

from __future__ import annotations

import sys

from tools.reference.pages import PAGES, ROOT

for path, text in PAGES.items():
    (ROOT / path).write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{path}\n")
