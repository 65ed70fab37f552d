"""Goal: each field of a progress report has its meaning on a page. Method: build reports with every field, compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark_ledger.connector.read.data_loss import DataLossRange
from pyspark_ledger.connector.read.progress import (
    LEDGERS_MAX,
    LedgerLag,
    SourceIdentity,
    cache_between,
    reads_between,
    stream_report,
)
from pyspark_ledger.connector.read.progress_fields import PROGRESS_FIELDS
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.cache import CacheReads
from pyspark_ledger.ledger.protocol.reads import LogStatus

# Fields whose members the page explains in their own text.
WHOLE = {"credentials", "dataLoss", "ledgersInAll", "otherLedgers"}
# Added to a report that is built already (`connector.read.ledger.scan.with_added_columns`, the stream reader).
ADDED = {"columnsAdded", "columnsNotRead", "batch.id", "warnings"}


def lag(number: int) -> LedgerLag:
    end = Position(0, 1)
    status = LogStatus(f"public/default/persistent/{number}", "id", EARLIEST, end, EARLIEST, end)
    return LedgerLag(status, status, now_ms=0)


def names(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, member in value.items():
        path = f"{prefix}.{name}" if prefix else name
        if prefix == "ledgers":
            yield from (f"ledgers.<name>.{inner}" for inner in member)
        elif isinstance(member, dict) and path not in WHOLE:
            yield from names(member, path)
        else:
            yield path


def test_the_fields_of_a_report_are_those_of_the_page() -> None:
    reads = CacheReads()
    report = stream_report(
        SourceIdentity("/store", "id", "billing", {"token": "env:TOKEN"}),
        [lag(number) for number in range(LEDGERS_MAX + 1)],
        "maxRowsPerTrigger",
        reads_between(None, reads),
        cache_between(None, reads),
        [DataLossRange("orders", "trimmed", PositionRange(EARLIEST, Position(0, 1)))],
        complete=True,
    )
    explained = {name for fields in PROGRESS_FIELDS.values() for name in fields}
    assert {*names(report), *ADDED} == explained
    text = PROGRESS_FIELDS["Ledgers"]["ledgersInAll"]
    assert all(f"`{name}`" in text for name in report["ledgersInAll"])
    text = PROGRESS_FIELDS["Batch"]["dataLoss"]
    assert all(f"`{name}`" in text for name in report["dataLoss"][0])
