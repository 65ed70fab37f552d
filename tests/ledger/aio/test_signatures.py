"""Goal: the asyncio API has every name of the synchronous API, with the same arguments. Method: compare signatures."""

from __future__ import annotations

import inspect

import pytest

import pyspark_ledger
from pyspark_ledger import aio
from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.client.message_producer import MessageProducer

PAIRS: list[tuple[type, type]] = [
    (aio.LedgerStore, pyspark_ledger.LedgerStore),
    (aio.Ledger, pyspark_ledger.Ledger),
    (aio.PartitionedLedger, PartitionedLedger),
    (aio.Cursor, pyspark_ledger.Cursor),
    (aio.JoinedCursor, JoinedCursor),
    (aio.DeliveredBatch, pyspark_ledger.DeliveredBatch),
    (aio.Batches, pyspark_ledger.Batches),
    (aio.Producer, MessageProducer),
]
# What is inside of the synchronous classes, or has another form here.
INSIDE = {"client", "batches.until", "batches.fill", "batches.hand_out", "producer.batches", "producer.require_columns"}


def public(kind: type) -> list[str]:
    return [
        name
        for name in dir(kind)
        if not name.startswith("_")
        and callable(getattr(kind, name))
        and f"{kind.__name__.lower()}.{name}" not in INSIDE
    ]


CASES = [
    (twin, of, name) for twin, of in PAIRS for name in public(of) if f"{twin.__name__.lower()}.{name}" not in INSIDE
]


@pytest.mark.parametrize(("twin", "of", "name"), CASES, ids=[f"{twin.__name__}.{name}" for twin, _, name in CASES])
def test_method_has_the_arguments_of_its_twin(twin: type, of: type, name: str) -> None:
    assert hasattr(twin, name), f"{twin.__name__} has no {name}"
    ours, theirs = inspect.signature(getattr(twin, name)), inspect.signature(getattr(of, name))
    assert [_argument(each) for each in ours.parameters.values()] == [
        _argument(each) for each in theirs.parameters.values()
    ]
    assert inspect.getdoc(getattr(twin, name)), "a method says what it does"


def test_connect_has_the_arguments_of_its_twin() -> None:
    ours, theirs = inspect.signature(aio.connect), inspect.signature(pyspark_ledger.connect)
    assert [str(each) for each in ours.parameters.values()] == [str(each) for each in theirs.parameters.values()]


def _argument(parameter: inspect.Parameter) -> str:
    return "self" if parameter.name == "self" else str(parameter)
