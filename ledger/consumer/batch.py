"""Batch of a loop: some rows of one ledger, and the position after them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.row_type import Row

MAX_BYTES = 32 * 1024 * 1024
_INT64_MAX = 2**63 - 1
_SECONDS_MAX = 1000 * 366 * 86_400


def dictionaries(table: pa.Table) -> Iterator[Any]:
    """Yield the rows of a table as dictionaries."""
    for part in table.to_batches():
        yield from part.to_pylist()


@dataclass(frozen=True, eq=False)
class Batch(Generic[Row]):
    """Rows of one ledger that follow each other, at least one.

    `ledger` is the short name of the ledger or partition. `table` has the rows, with the columns that the ledger had
    when they were read. `position` is after the rows: store it after your work, and pass it to `follow(start=…)`.
    `rows()` yields the rows as objects of the ledger's class, as `Ledger.rows` does.

        for batch in orders.follow(start=saved):
            work(batch.table); save(batch.position)
    """

    ledger: str
    start: Position
    position: Position
    table: pa.Table
    _objects: Callable[[pa.Table], Iterator[Row]] = field(default=dictionaries, kw_only=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.ledger}: {self.num_rows} rows of [{self.start}, {self.position})>"

    @property
    def num_rows(self) -> int:
        """The number of rows, at least 1."""
        return int(self.table.num_rows)

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of the log, as objects of the ledger's type; as dictionaries without a type.

        Messages are decoded by the ledger's payload schemas, and for that read from the log again. Raises Refused for a
        row that does not fit the type. The error names the field.
        """
        return self._objects(self.table)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of the batches of a loop, and the seconds without a row after which the loop ends; None: it never ends.

    A batch has at most `max_rows` rows and `max_bytes` bytes, as stored. A batch ends between entries. Exception: a
    larger entry is a batch of its own. Raises Refused for a value that is no limit.
    """

    max_rows: int | None
    max_bytes: int
    wait: float | None

    def __post_init__(self) -> None:
        if self.max_rows is not None:
            _require_count("max_rows", self.max_rows, "None, for no limit, or ")
        _require_count("max_bytes", self.max_bytes, "")
        _ = self.wait_ms

    @property
    def wait_ms(self) -> int | None:
        """Milliseconds without a row after which the loop ends; None: it never ends."""
        hint = "None waits for ever, and 0 ends the loop at the end of the ledger"
        return None if self.wait is None else milliseconds("wait", self.wait, also="None or ", hint=hint)


def milliseconds(name: str, seconds: object, *, also: str = "", hint: str = "Use a form like 30 or 0.5") -> int:
    """Return a number of seconds as milliseconds, at most those of a thousand years. Raises Refused for other values.

    `also` names the other values that the caller accepts.
    """
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not math.isfinite(seconds) or seconds < 0:
        raise Refused(f"{name} is {seconds!r}, expected {also}a number of seconds, at least 0", hint=hint)
    return math.ceil(min(seconds, _SECONDS_MAX) * 1000)


def _require_count(name: str, value: Any, also: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _INT64_MAX:
        raise Refused(
            f"{name} is {value!r}, expected {also}a whole number of at least 1",
            hint="A batch has at least one entry, however low the limit is",
        )
