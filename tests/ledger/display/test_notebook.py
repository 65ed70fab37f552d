"""Goal: a notebook shows pictures and replaces the picture of running work. Method: a real kernel and a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.display.notebook import kernel
from tests.rigs.broker_thread import store
from tests.rigs.kernel import html_of, printed, run_cells
from tests.rigs.pictures import bars, drawings, texts

__all__ = ["store"]


def test_a_plain_process_is_no_notebook() -> None:
    import IPython

    assert IPython.get_ipython() is None
    assert kernel() is None


@pytest.mark.timeout(180)
@pytest.mark.thorough
def test_a_notebook_shows_a_ledger_and_a_bar_that_ends(store: Path, tmp_path: Path) -> None:
    ledger, position, offload, thread, silent = run_cells(
        tmp_path,
        f"from pyspark_ledger import connect\nstore = connect({str(store)!r})\norders = store.ledger('orders')\n"
        "end = orders.append([{'id': 1}])\norders",
        "end",
        f"store.offload_to({str(tmp_path / 'bucket')!r})\ndone = orders.offload(seal=True, progress=True)",
        "import threading\nfrom pyspark_ledger.ledger.display.notebook import NotebookDisplay\n"
        "shown = NotebookDisplay('<b>old</b>', 'old')\n"
        "worker = threading.Thread(target=shown.replace, args=('<b>new</b>', 'new'))\nworker.start()\nworker.join()",
        "orders.append([{'id': 2}])\ndone = orders.offload(seal=True)\nprint(repr(orders))",
    )
    assert "1 row in 1 entry" in texts(html_of(ledger)[0])
    assert ledger[0]["data"]["text/plain"].startswith("Ledger(public/default/persistent/orders): 1 row")
    assert "segment 0" in texts(html_of(position)[0])
    (bar,) = html_of(offload)
    assert "offload orders" in texts(bar)
    (_, full, _), (_, done, _) = bars(drawings(bar)[0])
    assert done == full, "the last update is drawn"
    assert html_of(thread) == ["<b>new</b>"], "a thread replaces the picture of its cell"
    assert html_of(silent) == [], "library use is silent unless asked"
    assert "2 segments" in printed(silent)
