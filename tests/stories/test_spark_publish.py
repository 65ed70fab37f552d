"""Goal: every sealed row is in the table exactly once after any failure, and unexpected changes of the table are found.

Method: a publisher fails before and after each of its commits, and two publishers run in parallel. Tables and ledgers
are deleted and created again, and other writers change rows. After each case the table is compared with the ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_ledger import configure, publish
from pyspark_ledger.connector.publish.delta_table import DeltaTable, LostRace
from pyspark_ledger.connector.publish.publisher import PublishedSegment, Publisher
from pyspark_ledger.connector.publish.request import Publishing
from pyspark_ledger.connector.session.default_store import DefaultStore, set_default_store
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import PublishedNote
from tests.rigs.bucket import kafka_batch, message, put_segment

pytestmark = [pytest.mark.tables, pytest.mark.feature("tables of Delta: publish and history")]
NAME = "public/default/persistent/orders"


class Published:
    """Ledger with one segment per append, and its table."""

    def __init__(self, spark: SparkSession, store: Path, table: str) -> None:
        self.spark, self.store, self.target = spark, store, table
        self.api = connect(store)
        self.make()

    def make(self) -> None:
        self.api.client.ask(CreateLedger(NAME, max_entries_per_ledger=1))

    @property
    def ledger(self) -> Ledger:
        found = self.api.ledger("orders")
        assert isinstance(found, Ledger)
        return found

    def append(self, *ids: int, **more: Any) -> None:
        for number in ids:
            self.ledger.append([{"id": number, "note": f"n{number}", **more}])

    def publisher(self, **wishes: Any) -> Publisher:
        return Publisher(self.spark, "orders", self.target, {"store": str(self.store)}, Publishing.of(**wishes))

    def publish(self, **wishes: Any) -> list[PublishedSegment]:
        found: list[PublishedSegment] = publish(
            self.spark, "orders", self.target, options={"store": str(self.store)}, **wishes
        )
        return found

    def table(self) -> DeltaTable:
        return DeltaTable(self.spark, self.target)

    def ids(self) -> list[int]:
        return sorted(row.id for row in self.table().frame().select("id").collect())

    def sealed(self) -> list[int]:
        return [one.ledger_id for one in self.ledger.describe().segments if one.close_ms]


@pytest.fixture
def orders(spark_session: SparkSession, store: Path, tmp_path: Path) -> Published:
    return Published(spark_session, store, str(tmp_path / "table"))


@pytest.fixture
def set_zone(spark_session: SparkSession) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the session's time zone for this test."""
    name = "spark.sql.session.timeZone"
    kept = spark_session.conf.get(name)
    yield lambda zone: spark_session.conf.set(name, zone)
    spark_session.conf.set(name, kept)


def test_segments_become_a_table(orders: Published, set_zone: Callable[[str], None]) -> None:
    # A zone where the date is not the date in UTC.
    set_zone("Etc/GMT+12" if datetime.now(UTC).hour < 11 else "Pacific/Kiritimati")
    orders.append(0, 1, 2)
    done = orders.publish()
    assert [one.segment for one in done] == orders.sealed()
    assert orders.ids() == list(range(len(done)))
    frame = orders.table().frame()
    assert frame.columns == [
        "__position", "__publishTime", "__eventTime", "__key", "__topic", "__incarnation", "__messageProperties",
        "__publishDate", "id", "note",
    ]  # fmt: skip
    row = frame.where("id = 1").selectExpr(
        "__position.*", "__topic", "__publishDate", "unix_millis(__publishTime) as published_ms"
    )
    (found,) = row.collect()
    assert (found.ledgerId, found.entryId, found.batchIndex) == (done[1].segment, 0, 0)
    assert found["__topic"] == "persistent://public/default/orders"
    assert found["__publishDate"] == datetime.fromtimestamp(found.published_ms / 1000, UTC).date()
    history = orders.table().history()
    assert len(history) == len(done)
    assert orders.publish() == []
    assert len(orders.table().history()) == len(history), "nothing new is no commit"
    # A row with a new column: the column is added after all others.
    orders.spark.createDataFrame([(9, "n9", "fr")], "id bigint, note string, country string").write.format(
        "ledger"
    ).option("store", str(orders.store)).option("mergeSchema", "true").mode("append").save("orders")
    orders.append(10, country="de")
    orders.publish()
    assert orders.table().frame().columns[-1] == "country"
    assert orders.table().frame().where("country = 'fr'").count() == 1
    # Positions and times have statistics, so that a range selects its files.
    files = orders.spark.read.json(orders.target + "/_delta_log/*.json").where("add is not null")
    stats = files.select("add.stats").first()
    assert stats is not None
    for name in ("ledgerId", "__publishTime", "id"):
        assert f'"{name}"' in stats.stats


def dying(orders: Published, before: Callable[[str, int], bool], after: Callable[[str, int], bool]) -> Publisher:
    """Publisher that fails before or after the n-th step of a kind: `create`, `append` or `note`."""
    publisher, counts = orders.publisher(), dict.fromkeys(("create", "append"), 0)

    def step(name: str, own: Callable[..., None]) -> Callable[..., None]:
        def run(*given: Any) -> None:
            counts[name] += 1
            if before(name, counts[name]):
                raise KeyboardInterrupt
            own(*given)
            if after(name, counts[name]):
                raise KeyboardInterrupt

        return run

    for name in counts:
        setattr(publisher.table, name, step(name, getattr(publisher.table, name)))
    return publisher


def test_publish_finds_the_default_store_of_the_session(orders: Published) -> None:
    orders.append(0, 1, 2)
    orders.ledger.seal()
    configure(orders.spark, store=orders.store)
    try:
        done = publish(orders.spark, "orders", orders.target)
        assert [one.segment for one in done] == orders.sealed()
        with pytest.raises(NotFound, match="elsewhere"):
            publish(orders.spark, "orders", orders.target, options={"Store": str(orders.store / "elsewhere")})
    finally:
        set_default_store(orders.spark, DefaultStore())
    assert orders.ids() == [0, 1, 2]


def test_a_publisher_that_dies_at_any_step_leaves_each_segment_once(orders: Published) -> None:
    orders.append(0, 1, 2)
    never = lambda _name, _count: False  # noqa: E731
    for name, count in (("create", 1), ("append", 1)):
        at = lambda found, number, name=name, count=count: (found, number) == (name, count)  # noqa: E731
        with pytest.raises(KeyboardInterrupt):
            dying(orders, at, never).publish()
        with pytest.raises(KeyboardInterrupt):
            dying(orders, never, at).publish()
    done = len(orders.table().frame().collect())
    assert done in (1, 2)
    orders.publish()
    assert orders.ids() == list(range(len(orders.sealed())))


def test_a_first_publish_that_fails_leaves_no_table(orders: Published) -> None:
    orders.append(0, 1, 2)
    first = orders.sealed()[0]
    damaged = orders.store / "ledgers" / f"{first}.ledger"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-20] + bytes(20))
    names = ["spark_catalog.default.orders", orders.target]
    letters, view = f"{orders.target}-letters", f"{orders.target}-view"
    orders.spark.sql("DROP TABLE IF EXISTS spark_catalog.default.orders")
    try:
        for orders.target in names:
            with pytest.raises(Exception, match="LEDGER_CORRUPT"):
                orders.publish(dead_letters=letters, latest=view)
            assert [DeltaTable(orders.spark, name).identity() for name in (orders.target, letters, view)] == [""] * 3
        damaged.write_bytes(whole)
        for orders.target in names:
            done = orders.publish(dead_letters=letters, latest=view)
            assert orders.ids() == list(range(len(done)))
            # The first segment creates the table, also in a catalog. The commit names the segment.
            oldest = orders.table().history()[-1]
            assert oldest.publication is not None
            assert oldest.publication.segment == first
    finally:
        orders.spark.sql("DROP TABLE IF EXISTS spark_catalog.default.orders")


def test_a_new_tables_id_is_that_of_delta_and_is_noted(orders: Published) -> None:
    orders.append(0, 1)
    parent = Path(orders.target).parent
    ids = []
    # Read as a pattern, the second path is the first one.
    for orders.target in (str(parent / "a"), str(parent / "[ab]")):
        orders.publish()
        assert orders.table().created_identity() == orders.table().identity()
        ids.append(orders.table().identity())
        note = PublishedNote.of(orders.publisher().source.logs()[0].properties, orders.target)
        assert note is not None
        assert note.table_id == ids[-1]
    assert len(set(ids)) == 2


def test_publishers_that_race_leave_each_segment_once(orders: Published) -> None:
    orders.append(*range(4))
    failed: list[BaseException] = []

    def run(publisher: Publisher) -> None:
        try:
            publisher.publish()
        except BaseException as error:  # noqa: BLE001  # reported by the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(orders.publisher(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert orders.ids() == list(range(len(orders.sealed())))
    # A publisher with an older snapshot: Delta skips segments that were committed since.
    late, log = orders.publisher(), orders.publisher().source.logs()[0]
    late._table_id = orders.table().identity()
    late._publish_segment(log, log.segments[0])
    assert orders.ids() == list(range(len(orders.sealed())))


def test_who_loses_every_race_gets_on_with_the_winner(orders: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.append(*range(3))
    monkeypatch.setattr("pyspark_ledger.connector.publish.publisher._RACES_MAX", 0)
    loser, winner, lost = orders.publisher(), orders.publisher(), []
    log = winner.source.logs()[0]

    def append(*_given: Any) -> None:
        lost.append(True)
        winner._publish_segment(log, log.segments[len(lost) - 1])
        raise LostRace("the other one")

    monkeypatch.setattr(loser.table, "create", append)
    monkeypatch.setattr(loser.table, "append", append)
    assert loser.publish() == []
    assert len(lost) == len(log.segments)
    assert orders.ids() == list(range(len(log.segments)))
    orders.append(3, 4)
    monkeypatch.setattr(
        loser.table, "append", lambda *_given: raise_it(LostRace("a third one, that publishes nothing"))
    )
    with pytest.raises(LostRace):
        loser.publish()


def raise_it(error: Exception) -> None:
    raise error


def test_rows_are_written_while_no_other_process_of_the_host_commits(orders: Published) -> None:
    orders.append(0)
    orders.append(1)
    orders.publish()
    place = str(Path(orders.target) / "_delta_log")

    def tried(_: int) -> str:
        import fcntl
        import os

        fd = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "taken"
        else:
            return "free"
        finally:
            os.close(fd)

    rows = orders.spark.range(1).select(
        f.udf(tried, "string")("id").alias("note"), f.current_date().alias("__publishDate")
    )
    orders.table().append(rows, "test", 1, "")
    assert [row.note for row in orders.table().frame().where("id IS NULL").collect()] == ["taken"]


def with_a_deletion(orders: Published, append: Callable[..., None]) -> Callable[..., None]:
    """Append; after the first append another writer deletes rows."""
    done: list[bool] = []

    def run(*given: Any) -> None:
        append(*given)
        if not done:
            orders.table().change(f"DELETE FROM {orders.table().sql} WHERE id = 2")  # noqa: S608
        done.append(True)

    return run


@pytest.mark.slow
def test_what_is_odd_is_noticed_before_anything_is_written(
    orders: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.append(0, 1, 2)
    orders.publish()
    versions = len(orders.table().history())
    orders.append(3)
    orders.table().change(f"DELETE FROM {orders.table().sql} WHERE id = 0")  # noqa: S608
    with pytest.raises(Refused, match=rf"version {versions}, DELETE.*accept_changes"):
        orders.publish()
    orders.publish(accept_changes=True)
    orders.publish()
    assert orders.ids() == list(range(1, len(orders.sealed())))

    # Another writer commits between two commits of one pass.
    orders.append(10, 11, 12)
    publisher = orders.publisher()
    monkeypatch.setattr(publisher.table, "append", with_a_deletion(orders, publisher.table.append))
    assert len(publisher.publish()) == 3
    orders.append(13)
    with pytest.raises(Refused, match=r"rows of .* were changed by another program: version \d+, DELETE"):
        orders.publish()
    orders.publish(accept_changes=True)
    orders.publish()
    assert orders.ids() == [1, 3, 10, 11, 12, 13][: len(orders.sealed()) - 2]

    (tmp_path / "table").rename(tmp_path / "away")
    orders.append(14)
    with pytest.raises(
        Refused, match=r"is not the same table any more: .* was deleted; it had the segments of .* up to \d+"
    ):
        orders.publish()
    orders.publish(restart=True)
    assert orders.ids() == [0, 1, 2, 3, 10, 11, 12, 13, 14][: len(orders.sealed())]

    orders.api.delete("orders")
    orders.make()
    orders.append(100, 101)
    with pytest.raises(Refused, match="of another incarnation"):
        orders.publish()
    orders.publish(restart=True)
    assert 100 in orders.ids()


def test_a_table_is_partitioned_as_it_was_made_whoever_publishes(
    orders: Published, tmp_path: Path, set_zone: Callable[[str], None]
) -> None:
    parity = {"partition_by": ["parity=id % 2"]}
    orders.append(0, 1)
    orders.publish(**parity)
    by_parity, orders.target = orders.target, str(tmp_path / "by_date")
    orders.publish()
    orders.append(2)
    orders.publish(**parity)
    assert "parity" not in orders.table().frame().columns
    assert orders.table().frame().where("__publishDate IS NULL").count() == 0
    orders.target = by_parity
    with pytest.raises(Refused, match="partition column 'parity' is none of"):
        orders.publish()
    orders.publish(**parity)
    assert orders.table().frame().where("parity = id % 2").count() == len(orders.sealed())

    orders.target = str(tmp_path / "by_hour")
    hour = {"partition_by": ["hour=date_trunc('hour', __publishTime)"]}
    set_zone("America/New_York")
    with pytest.raises(Refused, match=r"partition column .hour. has times, .* is America/New_York.* to UTC"):
        orders.publish(**hour)
    set_zone("UTC")
    orders.publish(**hour)
    assert orders.table().frame().where("hour = date_trunc('hour', __publishTime)").count() == len(orders.sealed())


def test_segments_that_went_unpublished_are_a_loss(orders: Published) -> None:
    orders.append(0, 1)
    orders.publish()
    orders.append(2, 3, 4)
    orders.ledger.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    assert len(orders.ledger.trim().ledgers) > 1
    orders.ledger.forget_policy("retentionTimeInMinutes", "retentionSizeInMB")
    orders.append(5, 6)
    with pytest.raises(DataLoss, match="retention deleted"):
        orders.publish()


def test_a_column_without_a_type_is_published_with_its_first_value(orders: Published) -> None:
    for number, gift in enumerate([None, None, 5, None]):
        orders.append(number, gift=gift)
        if number == 1:
            orders.publish()
            assert "gift" not in orders.table().frame().columns
    orders.publish()
    found = orders.table().frame().orderBy("id").select("id", "gift").collect()
    assert [tuple(row) for row in found] == [(0, None), (1, None), (2, 5)]


def test_added_fields_of_structs_are_added_to_table_and_view(orders: Published) -> None:
    def write(number: int, pair: str, value: str) -> None:
        rows = orders.spark.sql(f"SELECT {number}L AS id, 'n' AS note, {value} AS pair").selectExpr(
            "id", "note", f"cast(pair AS {pair}) AS pair"
        )
        rows.write.format("ledger").option("store", str(orders.store)).option("mergeSchema", "true").mode(
            "append"
        ).save("orders")

    def found() -> list[Any]:
        view = DeltaTable(orders.spark, view_of)
        tables = [table.frame().orderBy("id").select("id", "pair").collect() for table in (orders.table(), view)]
        assert tables[0] == tables[1]
        return [row.pair.asDict(recursive=True) for row in tables[0]]

    view_of = f"{orders.target}-view"
    write(
        0, "struct<x: bigint, l: array<struct<a: bigint>>>", "named_struct('x', 1L, 'l', array(named_struct('a', 2L)))"
    )
    orders.ledger.seal()
    orders.publish(latest=view_of, key="id")
    assert found() == [{"x": 1, "l": [{"a": 2}]}]
    more = "named_struct('x', 3L, 'l', array(named_struct('a', 4L, 'b', 5L)), 'y', {})"
    wide = "struct<x: bigint, l: array<struct<a: bigint, b: bigint>>, y: {}>"
    write(1, wide.format("void"), more.format("NULL"))
    write(2, wide.format("string"), more.format("'six'"))
    orders.ledger.seal()
    orders.publish(latest=view_of, key="id")
    first = {"x": 1, "l": [{"a": 2, "b": None}], "y": None}
    assert found() == [first, *({"x": 3, "l": [{"a": 4, "b": 5}], "y": y} for y in (None, "six"))]
    read = orders.spark.read.format("ledger").option("store", str(orders.store)).option("history", orders.target)
    assert [row.pair.asDict(recursive=True) for row in read.load("orders").orderBy("id").collect()] == found()


def test_record_batches_of_kafka_are_refused_or_dead_letters(spark_session: SparkSession, tmp_path: Path) -> None:
    bucket, table, letters = (str(tmp_path / name) for name in ("bucket", "table", "letters"))
    put_segment(tmp_path / "bucket", 3, [message(0, b"first"), kafka_batch(1, checksum=False)])
    with pytest.raises(Exception, match=r"stored by KoP with entry.format=kafka"):
        publish(spark_session, "t", table, options={"offload": bucket})
    publish(spark_session, "t", table, options={"offload": bucket}, dead_letters=letters)
    tables = [DeltaTable(spark_session, name).frame() for name in (table, letters)]
    assert [bytes(row.value) for row in tables[0].collect()] == [b"first"]
    (letter,) = tables[1].collect()
    assert "entry.format=kafka" in letter.reason
    assert letter["__position"].entryId == 1


def test_names_and_other_partitions(spark_session: SparkSession, store: Path) -> None:
    name = "spark_catalog.published.orders"
    orders = Published(spark_session, store, name)
    spark_session.sql("DROP SCHEMA IF EXISTS published CASCADE")
    spark_session.sql("CREATE SCHEMA published")
    orders.append(0, 1, 2)
    try:
        orders.publish(partition_by=["parity=id % 2"])
        detail = spark_session.sql(f"DESCRIBE DETAIL {name}").first()
        assert detail is not None
        assert detail.partitionColumns == ["parity"]
        assert detail.properties["delta.dataSkippingNumIndexedCols"] == "40"
        orders.append(3)
        with pytest.raises(Refused, match=r"partition column 'parity' is none of .* with which the table was created"):
            orders.publish()
        assert len(orders.publish(partition_by=["parity=id % 2"])) == 1
        assert orders.ids() == list(range(len(orders.sealed())))
        assert orders.table().frame().where("parity = id % 2").count() == len(orders.sealed())
        orders.target = "a.b.c.d"
        with pytest.raises(Refused, match=r"'a\.b\.c\.d' is neither a path"):
            orders.publish()
        spark_session.sql("CREATE TABLE published.other (id bigint) USING parquet")
        orders.target = "published.other"
        with pytest.raises(Refused, match=r"published\.other has format parquet"):
            orders.publish()
    finally:
        spark_session.sql("DROP SCHEMA IF EXISTS published CASCADE")
