"""Goal: strict mypy knows the class of a ledger's objects. Method: mypy checks right and wrong lines of a user."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
USER = """
from dataclasses import dataclass

from pyspark_ledger import Ledger, connect


@dataclass
class Order:
    id: int


@dataclass
class Bill:
    id: int


store = connect()
orders: Ledger[Order] = store.ledger("orders", Order)
orders.append(Order(1))
orders.append([Order(1), Order(2)])
total: int = sum(order.id for order in orders.rows())
with orders.producer() as producer:
    producer.send(Order(1), key="a")
    producer.send(Bill(1))  # wrong
untyped: Ledger = store.ledger("orders")
untyped.append([{"id": 1}])
untyped.append(b"text")
names = [row["id"] for row in untyped.rows()]
orders.append(Bill(1))  # wrong
orders.append([Bill(1)])  # wrong
orders.append([{"id": 1}])  # wrong
bills: Ledger[Bill] = store.ledger("orders", Order)  # wrong
for order in orders.rows():
    print(order.total)  # wrong
with orders.cursor("billing").batches(ack="after") as batches:
    for batch in batches:
        total += sum(order.id for order in batch.rows())
        names = [bill["id"] for bill in batch.rows()]  # wrong
for followed in orders.follow():
    first: Bill = next(followed.rows())  # wrong
for loose in untyped.cursor("billing").batches():
    names += [row["id"] for row in loose.rows()]
"""
ASYNC_USER = """
from dataclasses import dataclass

from pyspark_ledger import aio


@dataclass
class Order:
    id: int


@dataclass
class Bill:
    id: int


async def main() -> None:
    async with aio.connect() as store, store.ledger("orders", Order) as orders, store.ledger("untyped") as untyped:
        await orders.append(Order(1))
        await orders.append(Bill(1))  # wrong
        await orders.append([{"id": 1}])  # wrong
        orders.append(Order(1)).id  # wrong
        same: aio.Ledger[Order] = orders
        bills: aio.Ledger[Bill] = orders  # wrong
        await untyped.append([{"id": 1}])
        total: int = sum([order.id async for order in same.rows()])
        async for batch in orders.follow(wait=0):
            total += sum(order.id for order in batch.rows())
            print(next(batch.rows()).total)  # wrong
        async with (await orders.cursor("billing")).batches(ack="after") as batches:
            async for delivered in batches:
                first: Bill = next(delivered.rows())  # wrong
                await delivered.acknowledge()
                await delivered.nack(delay="soon")  # wrong
        async for loose in untyped.follow():
            print([row["id"] for row in loose.rows()])
        async with orders.producer() as producer:
            print((await producer.send(Order(1), key="a")).entry_id)
            await producer.send(Bill(1))  # wrong
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_mypy_knows_the_objects_of_a_ledger(tmp_path: Path) -> None:
    programs = {"user.py": USER, "async_user.py": ASYNC_USER}
    for name, program in programs.items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", *(str(tmp_path / name) for name in programs)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    found = {(name, int(line)) for name, line in re.findall(r"(\w+\.py):(\d+): error:", ran.stdout)}
    assert found == {
        (name, number)
        for name, program in programs.items()
        for number, line in enumerate(program.splitlines(), start=1)
        if line.endswith("# wrong")
    }, ran.stdout
