"""Goal: small batches are joined and large batches are cut, in order. Method: batches of known sizes."""

from __future__ import annotations

import pyarrow as pa

from pyspark_ledger.ledger.rows.batch_sizes import join_batches


def test_large_batches_are_cut_into_equal_views() -> None:
    rows, body = 4099, bytes(1016)
    batch = pa.record_batch({"id": pa.array(range(rows)), "body": pa.array([body] * rows)})
    one = pa.record_batch({"id": pa.array([rows]), "body": pa.array([bytes(3 * 1024 * 1024)])})
    found = list(join_batches([batch, one], batch.schema, 1024 * 1024))
    assert [piece.num_rows for piece in found] == [1025, 1025, 1025, 1024, 1]
    assert pa.Table.from_batches(found).column("id").to_pylist() == [*range(rows), rows]
    assert {piece.column("body").buffers()[2].address for piece in found[:4]} == {
        batch.column("body").buffers()[2].address
    }


def test_joining_keeps_order_around_large_batches() -> None:
    def batch(first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})

    parts = [batch(0, 10), batch(10, 100_000), batch(100_010, 5), batch(100_015, 5), batch(100_020, 90_000)]
    found = list(join_batches(parts, parts[0].schema, 1024 * 1024))
    assert [b.num_rows for b in found] == [10, 100_000, 10, 90_000]
    assert pa.Table.from_batches(found).column("n").to_pylist() == list(range(190_020))
