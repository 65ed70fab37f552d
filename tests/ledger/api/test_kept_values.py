"""Goal: a value of Python is stored unchanged, or refused. Method: appends of values that Arrow would change."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Refused

NOON = datetime(2026, 1, 2, 12, 0, 0, 5)  # noqa: DTZ001, a time without a zone
PART, LATE = time(1, 2, 3, 4), timedelta(seconds=1, microseconds=5)


@pytest.mark.parametrize(
    ("kind", "wrong", "right", "stored"),
    [
        (pa.int64(), Decimal("2.5"), Decimal(2), 2),
        (pa.int64(), np.float32(2.5), np.float32(2), 2),
        (pa.list_(pa.int64()), [1, 2.5], [1, 2.0], [1, 2]),
        (pa.list_(pa.int64()), np.array([2.5]), np.array([2.0]), [2]),
        (pa.struct([("n", pa.int32())]), {"n": 2.5}, {"n": 2.0}, {"n": 2}),
        (pa.map_(pa.string(), pa.int64()), {"k": 2.5}, {"k": 2.0}, [("k", 2)]),
        (pa.date32(), NOON, datetime(2026, 1, 2), date(2026, 1, 2)),  # noqa: DTZ001
        (pa.timestamp("s"), NOON, NOON.replace(microsecond=0), NOON.replace(microsecond=0)),
        (pa.timestamp("us"), 2.5, NOON, NOON),
        (pa.time32("ms"), PART, PART.replace(microsecond=0), PART.replace(microsecond=0)),
        (pa.duration("s"), LATE, timedelta(1), timedelta(1)),
        (pa.float32(), 1e300, 0.5, 0.5),
    ],
)
def test_a_value_is_stored_as_it_is_or_refused(
    store: LedgerStore, kind: pa.DataType, wrong: Any, right: Any, stored: Any
) -> None:
    ledger = store.ledger("kept")
    ledger.append(pa.table({"v": pa.nulls(1, kind)}))
    with pytest.raises(Refused, match=r"column 'v(\.\w+)?'.*would change.*nothing was appended"):
        ledger.append([{"v": None}, {"v": wrong}])
    ledger.append([{"v": right}])
    assert ledger.read()["v"].to_pylist() == [None, stored]
    store.client.close()
