"""Published tables made without Spark, by the library `deltalake`: one commit for each segment."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

INCARNATION = "11111111-2222-3333-4444-555555555555"
NAME = "public/default/persistent/orders"
PLACE = pa.struct([("ledgerId", pa.int64()), ("entryId", pa.int64()), ("batchIndex", pa.int32())])
BEGAN_MS = 1_700_000_000_000


def application(name: str = NAME, incarnation: str = INCARNATION) -> str:
    return f"ledger:{name}:{incarnation}"


def published(
    places: Sequence[tuple[int, int, int]],
    columns: dict[str, pa.Array],
    *,
    name: str = NAME,
    incarnation: str = INCARNATION,
    times_ms: Sequence[int] | None = None,
) -> pa.Table:
    """Return rows of a published table at positions (ledger, entry, row)."""
    count = len(places)
    times = [BEGAN_MS + place[0] * 1000 + place[1] for place in places] if times_ms is None else times_ms
    publish = pa.array([time_ms * 1000 for time_ms in times], pa.timestamp("us", tz="UTC"))
    tenant, namespace, domain, local = name.split("/", 3)
    ids = [dict(zip(("ledgerId", "entryId", "batchIndex"), place, strict=True)) for place in places]
    days = [dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).date() for time_ms in times]
    return pa.table(
        {
            "__position": pa.array(ids, PLACE),
            "__publishTime": publish,
            "__eventTime": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "__key": pa.nulls(count, pa.string()),
            "__topic": pa.array([f"{domain}://{tenant}/{namespace}/{local}"] * count),
            "__incarnation": pa.array([incarnation] * count),
            "__messageProperties": pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
            "__publishDate": pa.array(days, pa.date32()),
            **columns,
        }
    )


def publish(
    table: Path | str,
    rows: pa.Table,
    segment: int,
    *,
    name: str = NAME,
    incarnation: str = INCARNATION,
    storage: dict[str, str] | None = None,
    after: int | None = None,
) -> None:
    """Commit a whole segment with its transaction and its record.

    `after` is the table version that the publisher had checked.
    """
    said = {
        "publication": 1, "kind": "segment", "ledger": name, "incarnation": incarnation, "segment": segment,
        "rows": rows.num_rows, **({} if after is None else {"after": after}),
    }  # fmt: skip
    write_deltalake(
        str(table),
        rows,
        partition_by=["__publishDate"],
        mode="append",
        schema_mode="merge",
        storage_options=storage,
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": json.dumps(said)},
            app_transactions=[Transaction(application(name, incarnation), segment)],
        ),
    )
