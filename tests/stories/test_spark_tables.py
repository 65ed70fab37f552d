"""Goal: tables are correct for objects of Pulsar, dead letters, views by key, and trimming.

Method: stories with a real Delta table each. The table is compared with a read of its source.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger import publish
from pyspark_ledger.connector.publish.delta_table import DeltaTable, LostRace
from pyspark_ledger.connector.publish.latest_table import LatestRows
from pyspark_ledger.connector.publish.publisher import Publisher
from pyspark_ledger.connector.publish.request import Publishing
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.objects.directory import DirectoryStore
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.ledger.message.test_fixtures_pulsar import ROOT, expected

pytestmark = [pytest.mark.tables, pytest.mark.feature("tables of Delta: publish and history")]
CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "user", "type": "string"}, {"name": "page", "type": ["null", "string"]}],
}


@pytest.mark.parametrize("folder", ["04-zlib", "11-transactions"])
def test_a_topic_of_a_real_pulsar_is_published_from_its_bucket(
    spark_session: SparkSession, tmp_path: Path, folder: str
) -> None:
    name, objects = f"persistent://public/fx/{folder}", tmp_path / "objects"
    shutil.copytree(ROOT / folder / "objects", objects)
    options, table, letters = {"offload": str(objects)}, str(tmp_path / "table"), str(tmp_path / "letters")
    done = publish(spark_session, name, table, options=options, dead_letters=letters)
    assert len(done) == len(list(objects.glob("*-ledger-*[0-9]")))
    wanted = sorted(
        (one["id"]["ledger"], one["id"]["entry"], one["id"]["batchIndex"], one["size"], one["key"] or "")
        for one in expected(folder, [one.segment for one in done])
    )

    def found(rows: DataFrame) -> list[tuple[object, ...]]:
        sizes = rows.select("__position.*", f.length("value").alias("size"), "__key").collect()
        return sorted((row.ledgerId, row.entryId, row.batchIndex, row.size, row["__key"] or "") for row in sizes)

    assert found(DeltaTable(spark_session, table).frame()) == wanted
    assert DeltaTable(spark_session, letters).frame().count() == 0
    assert publish(spark_session, name, table, options=options) == []
    joined = spark_session.read.format("ledger").options(**options, history=table, includeMetadata="true")
    for path in list(objects.glob(f"*-ledger-{done[0].segment}*"))[: 9 * (len(done) - 1)]:
        path.unlink()  # only the table has the row
    assert found(joined.load(name)) == wanted


def test_of_a_bucket_everything_is_looked_at_once(
    spark_session: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, bucket, table = connect(store), tmp_path / "bucket", str(tmp_path / "table")
    opened.offload_to(str(bucket))
    opened.client.ask(CreateLedger("orders", max_entries_per_ledger=1))
    orders = opened.ledger("orders")
    assert isinstance(orders, Ledger)
    asked: Counter[str] = Counter()
    for kind in ("get", "get_range"):
        own = getattr(DirectoryStore, kind)

        def counted(self: DirectoryStore, key: str, *given: int, own: Callable[..., Any] = own) -> Any:
            asked[key] += 1
            return own(self, key, *given)

        monkeypatch.setattr(DirectoryStore, kind, counted)

    def append(*rows: dict[str, object]) -> None:
        for row in rows:
            orders.append([row])
        orders.offload(seal=True)
        asked.clear()

    publisher = Publisher(spark_session, "orders", table, {"offload": str(bucket)})
    append(*({"id": number} for number in range(3)))
    assert len(publisher.publish()) == 3
    assert len(asked) == 6
    assert max(asked.values()) <= 2, "each index, and the beginning of each data object"
    assert publisher.publish() == []
    writer = spark_session.createDataFrame([(3, "fr")], "id bigint, country string").write.format("ledger")
    writer.options(store=str(store), mergeSchema="true").mode("append").save("orders")
    append()
    assert [one.segment for one in publisher.publish()] == [one.ledger_id for one in orders.describe().segments][3:4]
    assert len(asked) == 2, "nothing but what is new"
    rows = DeltaTable(spark_session, table).frame().select("id", "country").collect()
    assert sorted((row.id, row.country) for row in rows) == [(0, None), (1, None), (2, None), (3, "fr")]
    assert publish(spark_session, "orders", table, options={"store": str(store)}) == [], "the same segments"


def registered(store: Path) -> Ledger:
    """Create a ledger of clicks with a JSON schema."""
    clicks = connect(store).ledger("clicks")
    assert isinstance(clicks, Ledger)
    clicks.register_payload_schemas(json.dumps({"type": "JSON", "schema": CLICK}))
    return clicks


def click(user: str, page: str) -> tuple[str, bytes]:
    """Return key and payload of a user's click."""
    return user, json.dumps({"user": user, "page": page}).encode()


def messages(ledger: Ledger, *sent: tuple[str, bytes | None]) -> None:
    with ledger.producer() as producer:
        for key, value in sent:
            producer.send(value, key=key).result(30)
    ledger.seal()


def test_what_cannot_be_decoded_and_the_newest_of_each_key(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    clicks = registered(store)

    table, letters, view = (str(tmp_path / name) for name in ("table", "letters", "view"))
    options = {"store": str(store)}
    for wish in ({"dead_letters": table + "/"}, {"latest": table}, {"latest": view, "dead_letters": view}):
        with pytest.raises(Refused, match="is named for two of"):
            publish(spark_session, "clicks", table, options=options, **wish)
    messages(clicks, click("a", "home"), click("b", "home"), ("c", b"no json"), click("a", "basket"))
    with pytest.raises(Exception, match="cannot be decoded"):
        publish(spark_session, "clicks", table, options=options)

    def run() -> None:
        publish(spark_session, "clicks", table, options=options, dead_letters=letters, latest=view)

    def latest() -> dict[str, str]:
        rows = DeltaTable(spark_session, view).frame().select("__key", "page").collect()
        return {row["__key"]: row["page"] for row in rows}

    run()
    assert DeltaTable(spark_session, table).frame().count() == 3
    (letter,) = DeltaTable(spark_session, letters).frame().collect()
    assert (letter["__key"], letter.payload, letter["__position"].entryId) == ("c", bytearray(b"no json"), 2)
    assert letter.reason
    assert latest() == {"a": "basket", "b": "home"}

    messages(clicks, click("d", "home"), click("b", "pay"), ("a", None))
    messages(clicks, click("d", "pay"))
    run()
    assert latest() == {"b": "pay", "d": "pay"}, "a tombstone deletes"
    assert DeltaTable(spark_session, letters).frame().count() == 1
    # A late writer with an older state of the view: Delta skips the commit.
    publisher = Publisher(spark_session, "clicks", table, options, Publishing.of(dead_letters=letters, latest=view))
    before, log = latest(), publisher.source.logs()[0]
    assert publisher.latest is not None
    publisher.latest.refresh(log, log.segments[0].ledger_id, ["user", "page"])
    assert latest() == before


def dies(patch: pytest.MonkeyPatch, died: set[tuple[str, str]]) -> None:
    """Make the publisher fail once before each step: creation and append of each table, the view, and the note."""

    def step(name: str, own: Callable[..., None]) -> Callable[..., None]:
        def run(self: Any, *given: Any) -> None:
            at = (name, Path(self.target).name if isinstance(self, DeltaTable) else "")
            if at not in died:
                died.add(at)
                raise KeyboardInterrupt
            own(self, *given)

        return run

    for kind, name in (
        (DeltaTable, "create"),
        (DeltaTable, "append"),
        (LatestRows, "refresh"),
        (Publisher, "_report_to_broker"),
    ):
        patch.setattr(kind, name, step(name, getattr(kind, name)))


def test_who_dies_between_any_two_steps_leaves_letters_rows_and_view_once(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    clicks = registered(store)
    table, letters, view = (str(tmp_path / name) for name in ("table", "letters", "view"))
    wishes = Publishing.of(dead_letters=letters, latest=view)
    for users in (["a"], ["a", "b"]):
        died: set[tuple[str, str]] = set()
        user = users[-1]
        messages(clicks, click(user, "home"), (f"no {user}", b"no json"))
        while True:
            with pytest.MonkeyPatch.context() as patch:
                dies(patch, died)
                try:
                    Publisher(spark_session, "clicks", table, {"store": str(store)}, wishes).publish()
                except KeyboardInterrupt:
                    continue
                break
        step = "create" if len(users) == 1 else "append"
        assert died >= {(step, "letters"), (step, "table"), ("refresh", ""), ("_report_to_broker", "")}
        for target, column in ((table, "user"), (view, "user")):
            rows = DeltaTable(spark_session, target).frame().select(column).collect()
            assert sorted(row.user for row in rows) == users
        rows = DeltaTable(spark_session, letters).frame().select("__key").collect()
        assert sorted(row["__key"] for row in rows) == [f"no {user}" for user in users]
        noted = [value for name, value in clicks.change_properties({}).items() if name.startswith("published:")]
        assert len(noted) == 1


def test_view_keeps_its_partition_column_and_survives_a_lost_race(
    spark_session: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, save, odd = connect(store).ledger("orders"), DeltaTable._save, "price`s.net"
    assert isinstance(orders, Ledger)
    failures: list[Exception] = [LostRace("another commit was faster"), RuntimeError("the session is gone")]

    def failing(self: DeltaTable, write: Any) -> None:
        if failures and self.target.endswith("view"):
            raise failures.pop(0)
        save(self, write)

    monkeypatch.setattr(DeltaTable, "_save", failing)
    wishes = Publishing.of(["country"], latest=str(tmp_path / "view"), key="item")
    publisher = Publisher(spark_session, "orders", str(tmp_path / "table"), {"store": str(store)}, wishes)
    orders.append([{"item": "tea", "country": "de", odd: 1}, {"item": "salt", "country": None, odd: None}])
    orders.append([{"item": "tea", "country": "fr", odd: None}])
    orders.seal()
    with pytest.raises(RuntimeError, match="the session is gone"):
        publisher.publish()
    assert publisher.publish() == [], "the segment is published, only the view was left"
    rows = (
        DeltaTable(spark_session, str(tmp_path / "view")).frame().select("item", "country", "`price``s.net`").collect()
    )
    assert list(map(tuple, rows)) == [("tea", "fr", None)]
    (log,) = publisher.source.logs()
    assert publisher.latest is not None
    with pytest.raises(Refused, match=r"column __rank of .* has a name that view .* uses internally"):
        publisher.latest.refresh(log, log.segments[-1].ledger_id, ["item", "__rank"])


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_column_that_the_view_needs_is_refused_before_anything_is_made(
    spark_session: SparkSession, store: Path, tmp_path: Path, partitions: int
) -> None:
    connect(store).client.ask(CreateLedger("orders", partitions=partitions))
    rows = spark_session.createDataFrame([("tea", 1), ("salt", 2)], "item string, __rank int")
    rows.write.format("ledger").mode("append").option("store", str(store)).save("orders")
    orders = connect(store).ledger("orders")
    for part in orders.partitions() if isinstance(orders, PartitionedLedger) else [orders]:
        part.seal()
    table, letters, view = (str(tmp_path / name) for name in ("table", "letters", "view"))
    wishes = {"options": {"store": str(store)}, "dead_letters": letters}
    with pytest.raises(Refused, match=r"column __rank of .* has a name that view .* uses internally"):
        publish(spark_session, "orders", table, latest=view, key="item", **wishes)
    assert [Path(one).exists() for one in (table, letters, view)] == [False] * 3
    assert publish(spark_session, "orders", table, **wishes), "without the view"


def test_a_widened_column_is_not_published_into_its_table(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    table, options = str(tmp_path / "table"), {"store": str(store)}
    for kind in ("int", "bigint"):
        rows = spark_session.sql(f"select cast(1 as {kind}) as n")
        rows.write.format("ledger").options(mergeSchema="true", **options).mode("append").save("orders")
        orders = connect(store).ledger("orders")
        assert isinstance(orders, Ledger)
        orders.seal()
        if kind == "int":
            assert len(publish(spark_session, "orders", table, options=options)) == 1
    with pytest.raises(Refused, match=r"column 'n' of the ledger is bigint, .* has int: nothing was published"):
        publish(spark_session, "orders", table, options=options)
    assert DeltaTable(spark_session, table).frame().count() == 1
    joined = spark_session.read.format("ledger").options(history=table, **options).load("orders")
    assert (joined.dtypes, joined.count()) == ([("n", "bigint")], 2)
    assert len(publish(spark_session, "orders", str(tmp_path / "another"), options=options)) == 2


@pytest.mark.slow
def test_retention_of_log_and_table(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    orders, table = connect(store).ledger("orders"), str(tmp_path / "table")
    assert isinstance(orders, Ledger)
    options = {"store": str(store)}

    def ids() -> list[int]:
        return sorted(row.id for row in DeltaTable(spark_session, table).frame().select("id").collect())

    def append(number: int) -> None:
        orders.append([{"id": number, "gone": number < 2}])

    append(0)
    assert publish(spark_session, "orders", table, options=options) == [], "nothing is sealed"
    assert publish(spark_session, "orders", table, options=options, seal_after_ms=3_600_000) == []
    assert len(publish(spark_session, "orders", table, options=options, seal_after_ms=0)) == 1
    # A segment is trimmed after it is published and every cursor has read it.
    cursor = orders.cursor("billing")
    orders.set_policy(deleteAfterPublish=1)
    assert orders.trim().ledgers == []
    cursor.acknowledge(orders.end().end)
    append(1)
    assert len(orders.trim().ledgers) == 1
    assert orders.read().num_rows == 1
    publish(spark_session, "orders", table, options=options, seal_after_ms=0)
    assert ids() == [0, 1]
    with pytest.raises(Refused, match="deleteAfterPublish"):
        publish(spark_session, "orders", table, options=options, follow_retention=True)
    # The reverse: segments that retention trims are deleted from the table.
    orders.set_policy(deleteAfterPublish=0)
    publish(spark_session, "orders", table, options=options, follow_retention=True)
    assert ids() == [1]
    append(2)
    assert len(publish(spark_session, "orders", table, options=options, seal_after_ms=0, optimize_after=1)) == 1
    assert ids() == [1, 2]
    versions = DeltaTable(spark_session, table).history()
    assert versions[0].operation == "OPTIMIZE"
    # Time travel reaches each segment, also versions before the deletion by retention.
    at = {said.segment: one.version for one in versions if (said := one.publication) and said.kind == "segment"}
    for version, wanted in zip(sorted(at.values()), ([0], [0, 1], [1, 2]), strict=True):
        then = spark_session.read.format("delta").option("versionAsOf", version).load(table)
        assert sorted(row.id for row in then.select("id").collect()) == wanted
    # The entries of VACUUM in the table's history are no changes of rows.
    checked = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark_session.conf.set(checked, "false")
    spark_session.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    spark_session.conf.unset(checked)
    append(3)
    assert len(publish(spark_session, "orders", table, options=options, seal_after_ms=0)) == 1
    assert ids() == [1, 2, 3]
    append(4)
    joined = spark_session.read.format("ledger").options(store=str(store), history=table, columns="id").load("orders")
    assert sorted(row.id for row in joined.collect()) == [1, 2, 3, 4]


def test_partitions_are_logs_of_their_own(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    clicks, table = connect(store).create_partitioned("clicks", 2), str(tmp_path / "table")
    options = {"store": str(store)}
    clicks.append([{"id": 0}, {"id": 1}])
    for partition in clicks.partitions():
        partition.append([{"id": 2}])
    assert clicks.seal()
    assert not clicks.seal()
    assert len(publish(spark_session, "clicks", table, options=options, partition_by=[])) == 2
    clicks.partitions()[1].append([{"id": 3}])
    clicks.seal()
    assert len(publish(spark_session, "clicks", table, options=options)) == 1
    rows = DeltaTable(spark_session, table).frame()
    assert sorted(row.id for row in rows.select("id").collect()) == [0, 1, 2, 2, 3]
    assert rows.select("__topic").distinct().count() == 2
