"""Goal: `explain` shows the tasks that Spark gets.

Method: a real broker; the plan is compared with the rows of its ranges; plans of a bucket and of a published table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.connector.display.read_plan import ReadPlan, explain
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.position import Position, PositionRange
from tests.rigs.pictures import SVG, drawings, texts
from tests.rigs.published_history import append_pairs, publish_sealed, table

__all__ = ["table"]


@pytest.fixture
def options(api: LedgerStore) -> dict[str, str]:
    return {"store": api.location, "path": "orders"}


def test_a_plan_has_the_ranges_that_are_read(api: LedgerStore, options: dict[str, str]) -> None:
    orders = api.ledger("orders")
    append_pairs(orders, 0, 40)
    orders.seal()
    append_pairs(orders, 40, 60)
    wanted = {"minPartitionBytes": "1000", "targetPartitionBytes": "4000"}
    plan = explain({**options, **wanted})
    assert plan.columns == ("n", "s")
    assert plan.tasks == len(plan.parts) > 2
    read = [orders.read(part.range.start, part.range.end).num_rows for part in plan.parts]
    assert sum(read) == 120
    assert [part.range.start for part in plan.parts[1:]] == [part.range.end for part in plan.parts[:-1]]
    empty = explain({**options, "startingPosition": str(orders.end().end)})
    assert (empty.tasks, empty.columns) == (0, ("n", "s"))
    assert "nothing to read" in repr(empty)


def test_a_plan_is_drawn_on_the_segments(api: LedgerStore, options: dict[str, str]) -> None:
    orders = api.ledger("orders")
    append_pairs(orders, 0, 40)
    orders.seal()
    append_pairs(orders, 40, 60)
    plan = explain({**options, "minPartitionBytes": "1000", "targetPartitionBytes": "4000"})
    picture = plan._repr_html_()
    (drawing,) = drawings(picture)
    assert len(list(drawing.iter(f"{SVG}rect"))) == 2 + plan.tasks
    assert f"{plan.tasks} tasks, 1 ledger" in texts(picture)
    lines = repr(plan).splitlines()
    assert lines[1] == "  columns: n, s"
    assert lines[2].startswith("  orders: 120 rows in 60 entries")
    assert lines[3].startswith("  task 0: orders [0:0, 0:")
    assert lines[3].endswith("from the log")


def test_a_plan_of_many_tasks_is_bounded() -> None:
    from pyspark_ledger.connector.display.read_plan import PlannedPart

    range_ = PositionRange(Position(0, 0), Position(0, 1))
    plan = ReadPlan(("id",), 4000, tuple(PlannedPart(at, "a/b/persistent/c", "log", range_) for at in range(4000)))
    assert "and 3,980 more parts" in repr(plan)
    assert len(plan._repr_html_()) < 10_000


def test_a_plan_of_a_bucket_lists_its_objects(api: LedgerStore, tmp_path: Path) -> None:
    orders = api.ledger("orders")
    append_pairs(orders, 0, 40)
    api.offload_to(tmp_path / "bucket")
    orders.offload(seal=True)
    plan = explain({"offload": str(tmp_path / "bucket"), "path": "orders"})
    assert plan.tasks == 1
    (part,) = plan.parts
    assert (part.source, str(part.range)) == ("bucket", "[0:0, 0:40)")
    assert part.size_bytes > 0
    assert "orders [0:0, 0:40) from the bucket, " in texts(plan._repr_html_())


def test_a_plan_of_a_published_table_shows_table_and_log(
    api: LedgerStore, options: dict[str, str], table: Path
) -> None:
    orders = api.ledger("orders")
    append_pairs(orders, 0, 40)
    orders.seal()
    publish_sealed(Path(api.location), table)
    append_pairs(orders, 40, 60)
    plan = explain({**options, "history": str(table)})
    assert [part.source for part in plan.parts] == ["table", "log"]
    assert plan.parts[0].files == 1
    assert len(plan.ledgers) == 1
    assert " from the table, 1 file, " in repr(plan)


def test_a_read_that_is_refused_has_no_plan(api: LedgerStore, options: dict[str, str]) -> None:
    with pytest.raises(NotFound, match="no ledger 'orders'"):
        explain(options)
    api.ledger("orders").append([{"id": 1}])
    with pytest.raises(Refused, match="startingOffsets"):
        explain({**options, "startingOffsets": "earliest"})
