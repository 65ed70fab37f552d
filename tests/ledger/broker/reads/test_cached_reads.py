"""Goal: what several readers want is read from storage once, what they do is known, and all of it is counted. Method:
a real broker, readers that map and readers that are sent to, leases and acknowledgements as queries make them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from pyspark_ledger.ledger.broker.reads.cached_reads import _entry_ranges
from pyspark_ledger.ledger.cache.eviction.registry import POLICIES
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.ownership import process_identity
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import (
    AcknowledgeCommand,
    ChangeSetting,
    CreateLedger,
    DeleteLedger,
    DescribeLedger,
)
from pyspark_ledger.ledger.protocol.cache import AskCache, CacheMetrics, LedgerCacheMetrics
from pyspark_ledger.ledger.protocol.cursors import (
    AckDeadLetters,
    AcquireLease,
    DecidedDelivery,
    DeleteCursor,
    MarkDelete,
    NextDelivery,
    OpenCursor,
    ReleaseLease,
    ResetCursor,
)
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.settings.cache import CACHE_POLICIES
from tests.rigs.driven_broker import DrivenBroker
from tests.rigs.entry import entry

Rig = Any
EVERYTHING = ReadRequest("", PositionRange(EARLIEST, LATEST), max_block_bytes=3000)
NUMBERS = count()


class Queries:
    """Subscriptions of one ledger, as queries hold them."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.ledger = client.ask(DescribeLedger(name)).segments[0].ledger_id
        self.make_entry: Callable[..., bytes]

    def begin(self, *names: str) -> None:
        for name in names:
            self.client.ask(OpenCursor(self.name, name, EARLIEST))
            request = AcquireLease(self.name, name, f"{process_identity()}/{name}", 60_000)
            assert self.client.ask(request).granted

    def read(self, name: str, first: int, end: int, *, mapping: bool = True) -> int:
        range_ = PositionRange(Position(self.ledger, first), Position(self.ledger, end))
        request = msgspec.structs.replace(EVERYTHING, name=self.name, range=range_, subscription=name)
        return sum(block.frames.size for block in self.client.read_blocks(request, mapping=mapping))

    def acknowledge(self, name: str, end: int) -> None:
        self.client.ask(MarkDelete(self.name, name, Position(self.ledger, end)))

    def deliver(self, name: str, after: int, end: int, *, timeout_ms: int = 60_000, most: int = -1) -> DecidedDelivery:
        """Decide on a batch, as the driver of a query with `ackMode` explicit does."""
        request = NextDelivery(self.name, name, after, EARLIEST, Position(self.ledger, end), True, timeout_ms, most)
        return self.client.ask(request)

    def give(self, name: str, action: str, *rows: tuple[int, int]) -> None:
        """Acknowledge entries and rows, or give them back; row -1 is the whole entry."""
        lines = np.array([[self.ledger, entry, row] for entry, row in rows], dtype=np.int64)
        acknowledge(self.client, AcknowledgeCommand(self.name, name, action=action), [acknowledge_batch(*lines.T)])

    def end(self, name: str) -> None:
        self.client.ask(ReleaseLease(self.name, name, f"{process_identity()}/{name}"))

    def counted(self) -> CacheMetrics:
        return self.client.ask(AskCache())

    def of_ledger(self) -> LedgerCacheMetrics:
        (found,) = (part for part in self.counted().ledgers if part.name.endswith(f"/{self.name}"))
        return found


def filled(client: Client, name: str, make_entry: Callable[..., bytes]) -> Queries:
    client.ask(CreateLedger(name))
    # Nothing goes by time while a test looks.
    client.ask(ChangeSetting("managedLedgerCacheEvictionTimeThresholdMillis", 10_000_000))
    with client.producer(name) as producer:
        for i in range(100):
            producer.append(make_entry(b"%03d" % i * 100))
    return Queries(client, name)


@pytest.fixture
def queries(shared_rig: Rig, make_entry: Callable[..., bytes]) -> Iterator[Queries]:
    """A ledger of its own; the broker, and what it counts, is shared."""
    client = connect_store(shared_rig.store, create=True)
    found = filled(client, f"orders{next(NUMBERS)}", make_entry)
    found.make_entry = make_entry
    yield found
    client.ask(DeleteLedger(found.name))
    for name in (
        "managedLedgerCacheSizeMB",
        "managedLedgerCacheLocalFilesSizeMB",
        "cacheEvictionPolicy",
        "managedLedgerCacheCopyEntries",
    ):
        client.ask(ChangeSetting(name))


@pytest.mark.parametrize("mapping", [(True, True), (False, False), (True, False), (False, True)])
def test_the_second_query_reads_what_the_first_read(queries: Queries, mapping: tuple[bool, bool]) -> None:
    queries.begin("a", "b")
    size = queries.read("a", 0, 50, mapping=mapping[0])
    counted = queries.of_ledger()
    assert (counted.hits, counted.misses, counted.miss_bytes, counted.entries) == (0, 50, size, 50)
    assert (counted.expected_reads, counted.non_evictable_bytes) == (50, size)
    queries.read("b", 0, 50, mapping=mapping[1])
    counted = queries.of_ledger()
    assert (counted.hits, counted.misses, counted.hit_bytes, counted.expected_reads) == (50, 50, size, 0)
    assert (counted.page_cache_hits, counted.file_misses, counted.page_cache_hit_bytes) == (50, 50, size)
    places = {place.reader: (place.position.entry_id, place.next_position.entry_id) for place in counted.readers}
    assert places == {"a": (0, 50), "b": (0, 50)}
    queries.acknowledge("a", 50)
    assert queries.of_ledger().readers[0].position == Position(queries.ledger, 50)


def test_what_overlaps_is_read_once(queries: Queries) -> None:
    queries.begin("a", "b", "c")
    queries.read("a", 10, 40)
    queries.read("b", 0, 60, mapping=False)
    queries.read("c", 5, 55)
    assert (queries.of_ledger().misses, queries.of_ledger().hits) == (60, 30 + 50)


def test_a_task_that_is_retried_settles_nothing_of_another_query(queries: Queries) -> None:
    queries.begin("a", "b")
    for _ in range(3):
        queries.read("a", 0, 50)
    assert queries.of_ledger().expected_reads == 50
    assert queries.of_ledger().misses == 50


def test_a_query_alone_caches_nothing(queries: Queries) -> None:
    queries.begin("a")
    queries.read("a", 0, 50)
    assert (queries.of_ledger().misses, queries.counted().local_file_bytes) == (50, 0)


def test_what_is_appended_is_read_by_all_who_follow_without_storage(
    queries: Queries, make_entry: Callable[..., bytes]
) -> None:
    queries.begin("a", "b")
    with queries.client.producer(queries.name) as producer:
        for i in range(100, 150):
            producer.append(make_entry(b"%03d" % i * 100)).result(30)
    for name in "ab":
        queries.read(name, 100, 150)
    counted = queries.of_ledger()
    assert (counted.misses, counted.hits, counted.inserted) == (0, 100, 50)


def test_nothing_that_is_appended_is_cached_where_nobody_follows(
    queries: Queries, make_entry: Callable[..., bytes]
) -> None:
    with queries.client.producer(queries.name) as producer:
        before = queries.counted().inserted
        producer.append(make_entry(b"more")).result(30)
    assert queries.counted().inserted == before


def test_the_end_of_a_lease_and_a_reset_change_what_is_expected(queries: Queries) -> None:
    queries.begin("a", "b", "c")
    queries.read("a", 0, 50)
    assert queries.of_ledger().expected_reads == 100
    queries.end("b")
    assert queries.of_ledger().expected_reads == 50
    queries.client.ask(ResetCursor(queries.name, "a", Position(queries.ledger, 0)))
    assert queries.of_ledger().expected_reads == 100
    queries.end("a")
    queries.client.ask(DeleteCursor(queries.name, "c"))
    assert queries.of_ledger().readers == []


def test_a_broker_that_is_back_knows_whose_lease_runs(rig: Rig, make_entry: Callable[..., bytes]) -> None:
    queries = filled(connect_store(rig.store, create=True), "orders", make_entry)
    queries.begin("a", "b")
    _, broker = rig.supervised()
    os.kill(broker, signal.SIGKILL)
    queries.read("a", 0, 50)
    queries.read("b", 0, 50)
    assert (queries.of_ledger().misses, queries.of_ledger().hits) == (50, 50)


def test_what_a_query_gives_back_is_expected_again(queries: Queries) -> None:
    queries.begin("a", "b")
    queries.read("a", 0, 50)
    queries.read("b", 0, 50)
    assert queries.of_ledger().expected_reads == 0
    queries.deliver("a", 0, 50)
    queries.give("a", "nack", (7, -1), (9, -1))
    assert queries.of_ledger().expected_reads > 0
    queries.read("a", 7, 8)
    queries.read("a", 9, 10)
    assert queries.of_ledger().expected_reads == 0


def test_what_comes_back_by_its_timeout_is_expected_again(queries: Queries) -> None:
    queries.begin("a", "b")
    first = queries.deliver("a", 0, 50)
    for name in "ab":
        queries.read(name, 0, 50)
    assert queries.of_ledger().expected_reads == 0
    assert queries.deliver("a", first.record, 50).record == 0  # nothing is late
    assert queries.of_ledger().expected_reads == 0
    queries.give("a", "ack", (3, -1), (4, -1))
    back = queries.deliver("a", first.record, 50, timeout_ms=0)
    assert back.back_rows == 48
    assert queries.of_ledger().expected_reads == 50, "one span, which one reader expects"
    queries.read("a", 0, 3)
    assert queries.of_ledger().expected_reads == 50
    queries.read("a", 5, 50)
    assert queries.of_ledger().expected_reads == 0


def test_dead_letters_are_expected_reads_until_they_are_read(queries: Queries) -> None:
    queries.begin("a", "b")
    first = queries.deliver("a", 0, 50)
    for name in "ab":
        queries.read(name, 0, 50)
    dead = queries.deliver("a", first.record, 50, timeout_ms=0, most=0).dead
    assert dead
    assert queries.of_ledger().expected_reads == 50
    queries.read("a", 0, 50)
    assert queries.of_ledger().expected_reads == 0
    queries.client.ask(AckDeadLetters(queries.name, "a", dead))
    assert queries.of_ledger().readers[0].position == Position(queries.ledger, 50)


def test_an_entry_of_which_some_rows_are_given_back_is_expected_again(
    queries: Queries, make_entry: Callable[..., bytes]
) -> None:
    with queries.client.producer(queries.name) as producer:
        producer.append(make_entry(b"five", num_messages_in_batch=5)).result(30)
    queries.begin("a", "b")
    queries.deliver("a", 0, 101)
    for name in "ab":
        queries.read(name, 100, 101)
    before = queries.of_ledger().expected_reads
    queries.give("a", "nack", (100, 2))
    assert queries.of_ledger().expected_reads == before + 1
    queries.read("a", 100, 101)
    assert queries.of_ledger().expected_reads == before


def test_redelivered_entries_become_few_ranges_with_small_gaps_closed() -> None:
    wanted = PositionSet()
    wanted.add_entries(1, np.arange(0, 10_000, 2))
    wanted.add_entries(1, np.arange(50_000, 60_000, 100))
    wanted.add_entries(2, np.array([3, 4, 9]))
    found = list(_entry_ranges(wanted))
    assert [range_ for range_ in found if range_.start.ledger_id == 2] == [
        PositionRange(Position(2, 3), Position(2, 5)), PositionRange(Position(2, 9), Position(2, 10)),
    ]  # fmt: skip
    first = [range_ for range_ in found if range_.start.ledger_id == 1]
    assert len(first) == 1024
    covered = {entry for range_ in first for entry in range(range_.start.entry_id, range_.end.entry_id)}
    assert covered >= {*range(0, 10_000, 2), *range(50_000, 60_000, 100)}
    assert sum(entry >= 50_000 for entry in covered) == 100, "where gaps are large, nothing else comes back"


def test_a_reset_forgets_what_was_to_come_back(queries: Queries) -> None:
    queries.begin("a", "b")
    first = queries.deliver("a", 0, 50)
    for name in "ab":
        queries.read(name, 0, 50)
    queries.deliver("a", first.record, 50, timeout_ms=0)
    queries.client.ask(ResetCursor(queries.name, "a", Position(queries.ledger, 60)))
    assert queries.of_ledger().expected_reads == 0


def test_size_is_kept_and_counted(queries: Queries) -> None:
    queries.begin("a", "b")
    size = queries.read("a", 0, 50)
    counted = queries.counted()
    assert (counted.size_bytes, counted.local_file_bytes, counted.local_file_limit_bytes) == (0, size, 256 * 2**20)
    for name in ("managedLedgerCacheSizeMB", "managedLedgerCacheLocalFilesSizeMB"):
        queries.client.ask(ChangeSetting(name, 0))
    queries.read("a", 50, 100)
    counted = queries.counted()
    assert (counted.size_bytes, counted.limit_bytes, counted.policy) == (0, 0, "cursor-distance")
    assert (counted.local_file_bytes, counted.local_file_limit_bytes) == (0, 0)
    assert counted.not_kept > 0


def test_a_deleted_ledger_leaves_nothing(queries: Queries) -> None:
    queries.begin("a", "b")
    queries.read("a", 0, 50)
    assert queries.counted().local_file_bytes
    queries.client.ask(DeleteLedger(queries.name))
    assert queries.counted().local_file_bytes == 0
    assert not [part for part in queries.counted().ledgers if part.name.endswith(f"/{queries.name}")]
    queries.client.ask(CreateLedger(queries.name))


@pytest.mark.parametrize("policy", ["cursor-distance", "slowest-reader"])
def test_deleting_a_ledger_in_use_ends_and_so_do_its_readers(
    queries: Queries, make_entry: Callable[..., bytes], policy: str
) -> None:
    """The log's writer tells the cache that it closes, while readers of it move under the cache's lock."""
    client = queries.client
    client.ask(ChangeSetting("cacheEvictionPolicy", policy))
    with ThreadPoolExecutor(3) as threads:
        for _ in range(5):
            client.ask(CreateLedger(queries.name, exist_ok=True))
            with client.producer(queries.name) as producer:
                producer.append(make_entry(b"one")).result(30)
                queries.ledger = client.ask(DescribeLedger(queries.name)).segments[0].ledger_id
                queries.begin("a", "b")
                running = [threads.submit(_reading, queries, name) for name in "ab"]
                client.ask(DeleteLedger(queries.name))
                for done in running:
                    done.result(60)
                with suppress(LedgerError):
                    producer.close()
        client.ask(CreateLedger(queries.name))


def _reading(queries: Queries, name: str) -> None:
    with suppress(LedgerError):  # until it is gone
        while True:
            queries.read(name, 0, 1)
            queries.acknowledge(name, 1)


@pytest.mark.parametrize("mapping", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_where_entries_are_copied_the_file_is_read_once(queries: Queries, policy: str, *, mapping: bool) -> None:
    client = queries.client
    client.ask(ChangeSetting("cacheEvictionPolicy", policy))
    client.ask(ChangeSetting("managedLedgerCacheCopyEntries", 1))
    queries.begin("a", "b")
    size = queries.read("a", 0, 50, mapping=mapping)
    assert queries.read("b", 0, 50, mapping=mapping) == size
    counted = queries.of_ledger()
    assert (counted.misses, counted.miss_bytes, counted.hits) == (50, size, 50)
    assert (counted.file_miss_bytes, counted.memory_hit_bytes, counted.local_file_bytes) == (size, size, 0)
    with client.producer(queries.name) as producer:
        producer.append(queries.make_entry(b"x" * 300)).result(30)
    assert queries.read("a", 100, 101, mapping=mapping) > 300
    assert queries.of_ledger().misses == 50  # it was cached when it was appended


def test_the_setting_names_every_policy() -> None:
    assert set(CACHE_POLICIES) == set(POLICIES)


@pytest.mark.parametrize(("gone_ms", "is_cached"), [(1_000, True), (3_000, False)])
def test_appends_stay_cached_for_a_reader_that_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone_ms: int, is_cached: bool
) -> None:
    broker = DrivenBroker(tmp_path / "s", {}, monkeypatch)
    log = broker.log()
    broker.source.follow(log.name, "a", EARLIEST, 10**6)
    broker.source.leave(log.name, "a")
    broker.pass_ms(gone_ms)
    log.append([entry(b"x")]).result(60)
    assert bool(broker.cache.ledger(log.name).cache.entries) is is_cached
    broker.close()
