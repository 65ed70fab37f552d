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


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_mypy_knows_the_objects_of_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "user.py")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    wrong = [number for number, line in enumerate(USER.splitlines(), start=1) if line.endswith("# wrong")]
    assert sorted(map(int, set(re.findall(r"user\.py:(\d+): error:", found.stdout)))) == wrong, found.stdout
