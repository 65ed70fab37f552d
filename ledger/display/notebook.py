"""Display of a notebook that this process runs in: a picture that is shown once and replaced.

Rules
- IPython is used only in a process that runs cells of a notebook, and has imported IPython itself. So the package does
  not depend on IPython.
- A picture has a text beside it, for notebooks that show no HTML.
- A failed update ends the updates. Reason: some platforms show a picture but cannot replace it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

_log = logging.getLogger(__name__)


def kernel() -> Any:
    """Return IPython's shell in a notebook; None in a terminal and in a process without IPython."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return None if getattr(shell, "kernel", None) is None else shell


class NotebookDisplay:
    """Picture in the output of the running cell. Create it on the thread of the cell; any thread may replace it."""

    def __init__(self, html: str, text: str) -> None:
        from IPython.display import display

        self._handle: Any = display(_data(html, text), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._failed = False

    def replace(self, html: str, text: str) -> None:
        """Replace the picture. Never raises; after a failure it does nothing."""
        if self._failed or self._handle is None:
            return
        try:
            self._handle.update(_data(html, text), raw=True)
        except Exception:  # noqa: BLE001 — a picture never disturbs the work that it shows
            _log.warning("the notebook cannot replace a picture; display it again in a new cell", exc_info=True)
            self._failed = True


def _data(html: str, text: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": text}
