"""Goal: the id of a batch is the same in each process and thread of its work, and nowhere else. Method: by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_ledger.ledger.logs.batch import (
    HEADER,
    BatchId,
    batch_header,
    batch_of_header,
    current_batch,
    each_in_batch,
    in_batch,
)


@pytest.mark.parametrize(
    "batch",
    [
        BatchId("7f3a9c01-12"),
        BatchId("q:3", "q:3"),
        BatchId("txn:*:one:an app, with % and ä", "q:3"),
        BatchId('a"b\r\nx-injected: 1', "\0\n"),
    ],
)
def test_a_header_gives_the_batch_back(batch: BatchId) -> None:
    with in_batch(batch):
        ((name, value),) = batch_header()
    assert name.decode() == HEADER
    assert value.isascii()
    assert not set(value) & set(b"\r\n\0")
    assert batch_of_header(value.decode()) == batch


def test_a_call_outside_of_a_batch_has_no_header() -> None:
    assert (current_batch(), batch_header()) == (None, [])
    assert batch_of_header("") is None
    with in_batch(BatchId("a")), in_batch(None):
        assert current_batch() == BatchId("a")


def test_a_long_header_is_cut() -> None:
    found = batch_of_header(f"{'b' * 10_000} {'t' * 10_000}")
    assert found is not None
    assert (len(found.batch), len(found.trigger)) == (256, 256)


def test_items_are_made_in_the_batch_and_taken_outside_of_it() -> None:
    seen = list[object]()

    def items() -> Iterator[int]:
        for number in range(2):
            seen.append(current_batch())
            yield number
        seen.append(current_batch())

    batch = BatchId("a")
    for _ in each_in_batch(batch, items()):
        seen.append(current_batch())
    assert seen == [batch, None, batch, None, batch]


def test_the_id_of_a_write_is_the_trigger_unless_another_is_known() -> None:
    assert BatchId.of_write("q", 3) == BatchId("q:3", "q:3")
    assert BatchId.of_write("batch-1", 0, "q:3") == BatchId("batch-1:0", "q:3")
