"""Steps of batches in the log: one line for each step, with the batch's id and the numbers of the step.

The lines have a logger of their own. The logger is silent unless lines are logged as JSON (`ledger.logs.json_lines`).
Reason: a query that is triggered every second has several steps a second. In a text log these lines would hide all
other lines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from pyspark_ledger.ledger.logs.batch import current_batch

STEPS = logging.getLogger("pyspark_ledger.steps")
STEPS.setLevel(logging.WARNING)
FIELDS = "ledger_fields"
Figure = str | int | float | bool | None


def log_step(step: str, **figures: Figure) -> None:
    """Log a step of the present batch. Does nothing outside of a batch.

    Leaves out figures that are None or an empty text.
    """
    if current_batch() is None or not STEPS.isEnabledFor(logging.INFO):
        return
    kept = {name: figure for name, figure in figures.items() if figure not in (None, "")}
    STEPS.info(step, extra={FIELDS: {"step": step, **kept}})


@contextmanager
def timed_step(step: str, **figures: Figure) -> Iterator[dict[str, Figure]]:
    """Context manager: log its `with` block as a step, with the seconds, and the class of an error.

    The code of the block may add figures to the yielded dictionary.
    """
    if current_batch() is None or not STEPS.isEnabledFor(logging.INFO):
        yield {}
        return
    started_s, error = perf_counter(), ""
    try:
        yield figures
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        log_step(step, **figures, error=error, seconds=round(perf_counter() - started_s, 6))
