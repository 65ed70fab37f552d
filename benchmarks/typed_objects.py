"""Rows as objects of a class, against the same rows as dictionaries.

Ours is a loop over `rows()` of a ledger with a type. The base is a loop over `to_pylist()` of each batch of the same
ledger, and makes no objects. Both read 100,000 rows through the broker. Exception: for the pydantic model, the base
makes a model of each dictionary, because validation is most of the time on both sides.

The result is the lowest ratio of five classes. For information, the benchmark prints the objects that `append` takes in
a second.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pydantic

from benchmarks.harness import Loop, compare
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import StopBroker

ROWS = int(os.environ.get("TYPED_OBJECTS_ROWS") or 100_000)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Order(msgspec.Struct):
    """Order of numbers and text."""

    id: int
    item: str
    price: float
    amount: int | None
    gift: bool


class KeywordOrder(msgspec.Struct, kw_only=True):
    """Order that takes its fields by keyword only."""

    id: int
    item: str
    price: float
    amount: int | None
    gift: bool


@dataclass(slots=True)
class DataclassOrder:
    """Order as a dataclass."""

    id: int
    item: str
    price: float
    amount: int | None
    gift: bool


class Delivery(msgspec.Struct):
    """Class with an object inside, a list and a time."""

    order: Order
    tags: list[str]
    at: datetime


class ModelOrder(pydantic.BaseModel):
    """Order as a pydantic model."""

    id: int
    item: str
    price: float
    amount: int | None
    gift: bool


def fields(number: int) -> tuple[int, str, float, int | None, bool]:
    """Return the fields of an order. Each tenth has no amount."""
    return number, f"item {number % 1000}", number * 1.5, number if number % 10 else None, number % 2 == 0


def delivery(number: int) -> Delivery:
    return Delivery(Order(*fields(number)), ["fast", "fragile"], START + timedelta(seconds=number))


def by_name(kind: type) -> list[object]:
    """Return orders of a class that takes its fields by keyword."""
    names = ("id", "item", "price", "amount", "gift")
    return [kind(**dict(zip(names, fields(number), strict=True))) for number in range(ROWS)]


def consume(rows: Iterable[object]) -> None:
    """Run through the rows at the speed of C, so that a round measures how they are made."""
    deque(rows, maxlen=0)


def objects_loop(ledger: Ledger[object]) -> Loop:
    """Return the loop of ours."""
    return lambda: consume(ledger.rows())


def dictionaries_loop(ledger: Ledger[object], kind: type | None) -> Loop:
    """Return the loop of the base. It makes objects of `kind`, if that is given."""

    def loop() -> None:
        for batch in ledger.batches():
            rows = batch.to_pylist()
            consume(rows if kind is None else (kind(**row) for row in rows))

    return loop


def main() -> None:
    """Measure each class. The last line is the lowest ratio."""
    classes: list[tuple[type, list[object], type | None]] = [
        (Order, [Order(*fields(number)) for number in range(ROWS)], None),
        (DataclassOrder, [DataclassOrder(*fields(number)) for number in range(ROWS)], None),
        (KeywordOrder, by_name(KeywordOrder), None),
        (Delivery, [delivery(number) for number in range(ROWS)], None),
        (ModelOrder, by_name(ModelOrder), ModelOrder),
    ]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        store = connect(folder)
        for kind, objects, made in classes:
            ledger: Ledger[object] = store.ledger(kind.__name__, kind)
            start = time.perf_counter()
            ledger.append(objects)
            print(f"\n{kind.__name__}: append takes {ROWS / (time.perf_counter() - start):,.0f} objects/s", flush=True)
            name = f"typed_objects_{kind.__name__}"
            ratios.append(compare(name, objects_loop(ledger), dictionaries_loop(ledger, made)).ratio)
        store.client.ask(StopBroker())
    print(f"ratio typed_objects {min(ratios):.3f}")


if __name__ == "__main__":
    main()
