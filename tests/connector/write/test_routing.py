"""Goal: every row reaches the ledger and partition that it says, in order.

Method: batches grouped and compared with what Python does row by row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructType, TimestampType

from pyspark_ledger.connector.write.routing import KEPT, by_ledger, kept_columns, own_columns
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.partition_routing import by_partition, grouped, partition_for_key


def rows(**columns: list) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    return pa.record_batch({"n": pa.array(range(count), pa.int64()), **columns})


@given(st.lists(st.integers(-1, 4), max_size=50))
def test_groups_are_all_rows_once_and_in_their_order(codes: list[int]) -> None:
    found = dict(grouped(rows(c=codes), np.array(codes, dtype=np.int64)))
    assert {code: group.column("n").to_pylist() for code, group in found.items()} == {
        code: [n for n, other in enumerate(codes) if other == code] for code in set(codes)
    }


def test_rows_of_one_destination_are_not_copied() -> None:
    batch = rows(c=[1, 2, 3])
    ((code, group),) = grouped(batch, np.zeros(3, dtype=np.int64))
    assert code == 0
    assert group is batch
    ((name, group),) = by_ledger(batch, "orders")
    assert name == "orders"
    assert group is batch


def test_rows_go_to_the_ledgers_that_they_name() -> None:
    named = pa.array(["b", None, "a", "b", None], pa.string())
    found = {name: group.column("n").to_pylist() for name, group in by_ledger(rows(__ledger=named), "rest")}
    assert found == {"rest": [1, 4], "a": [2], "b": [0, 3]}
    with pytest.raises(Refused, match="2 rows have null in '__ledger', and the write names no ledger"):
        list(by_ledger(rows(__ledger=named), ""))


def test_rows_with_a_key_go_where_a_pulsar_client_would_send_them() -> None:
    keys = [None, *(f"user {n}" for n in range(50)), "é", ""]
    found = dict(by_partition(rows(__key=pa.array(keys, pa.string())), 4, turn=9))
    for partition, group in found.items():
        for key in group.column("__key").to_pylist():
            assert partition == (1 if key is None else partition_for_key(key, 4, "murmur3_32"))
    assert sum(group.num_rows for group in found.values()) == len(keys)
    assert [partition for partition, _ in by_partition(rows(c=[1, 2]), 4, turn=7)] == [3]


def test_what_rows_say_is_no_column_and_has_its_type() -> None:
    said = StructType().add("__ledger", StringType()).add("__key", StringType()).add("__eventTime", TimestampType())
    said = said.add("id", LongType()).add("__messageProperties", MapType(StringType(), StringType()))
    assert own_columns(said).names == ["id"]
    assert [field.name for field in kept_columns(said.names)] == KEPT.names
    for name, kind, expected in (
        ("__ledger", IntegerType(), "is int, .* must be string"),
        ("__key", LongType(), "is bigint, .* must be string"),
        ("__eventTime", LongType(), "is bigint, .* must be timestamp"),
        ("__messageProperties", MapType(StringType(), LongType()), r"is map<string,bigint>, .* map<string,string>"),
    ):
        with pytest.raises(Refused, match=f"column '{name}' {expected}"):
            own_columns(StructType().add("id", LongType()).add(name, kind))
