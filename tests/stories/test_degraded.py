"""Goal: what a platform forbids is replaced, and the replacement is logged once.

Method: a program writes, reads and acknowledges with a broker of its own, both under a kernel that forbids something.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs import forbid
from tests.rigs.broker_process import kill_all

STORY = """
import sys
import pyarrow as pa
from pyspark_ledger import connect
store = connect(sys.argv[1], create=True)
orders = store.create("orders")
for first in range(0, 1000, 100):
    orders.append(pa.table({"n": pa.array(range(first, first + 100), pa.int64())}))
cursor = orders.cursor("billing")
table, position = cursor.read()
cursor.acknowledge(position)
again = orders.read()
assert again["n"].to_pylist() == list(range(1000)), again
print("rows", again.num_rows, "read", table.num_rows, "backlog", cursor.state().backlog_rows)
"""


@pytest.mark.parametrize(
    ("forbidden", "said"),
    [
        ("memfd", "a producer's entries go over Flight"),
        ("packets", "a producer's entries go over Flight"),
        ("shared-memory", "no blocks in shared memory"),
    ],
)
def test_a_store_works_without(forbidden: str, said: str, tmp_path: Path) -> None:
    if not forbid.is_possible(forbidden):
        pytest.skip(f"this host lets no process forbid {forbidden}: mounts take root, filters x86-64")
    store = tmp_path / "store"
    command = [sys.executable, forbid.__file__, forbidden, sys.executable, "-c", STORY, str(store)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "rows 1000" in done.stdout
        logs = done.stderr + (store / "broker.log").read_text(encoding="utf-8")
        assert logs.count(said) == 1, logs[-3000:]
    finally:
        kill_all(store)
