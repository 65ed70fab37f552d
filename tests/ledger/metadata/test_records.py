"""Goal: records change by compare-and-set alone, and ids are given once. Method: a model by hypothesis, real files."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, Fenced, NotFound, Refused
from pyspark_ledger.ledger.message.run_marker import CommittedBatch
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.metadata.records import LedgerRecord, Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo

NOW = 1_700_000_000_000


def batch(query: str, number: int) -> CommittedBatch:
    return CommittedBatch(query, number, Position(0, 0), Position(0, 2), 2, 10, NOW)


def segment(ledger_id: int) -> SegmentRecord:
    return SegmentRecord(ledger_id, 256, 0, 0, 0, NOW)


HEAD = ManagedLedgerInfo()


@pytest.fixture
def metadata(path: Path) -> Iterator[Metadata]:
    metadata = Metadata.create(path, "a-store", "a-host", lambda: NOW)
    metadata.create_ledger("orders", "i0", {"owner": "me"}, exist_ok=False)
    yield metadata
    metadata.close()


def test_a_store_remembers_who_it_is(metadata: Metadata, path: Path) -> None:
    metadata.close()
    again = Metadata.open(path, lambda: NOW + 1)
    record = again.store_record()
    assert (record.store_id, record.host, record.created_ms) == ("a-store", "a-host", NOW)
    assert again.names() == ["orders"]
    assert again.ledger("orders").info.properties[0].value == "me"
    again.close()


def test_no_ledger_lists_a_segment_of_another(metadata: Metadata) -> None:
    metadata.create_ledger("bills", "i1", {}, exist_ok=False)
    metadata.update_ledger(metadata.ledger("orders"), HEAD, put=[segment(7)])
    with pytest.raises(Corrupt, match="segment 7 belongs to 'orders', and 'bills' was going to list it"):
        metadata.update_ledger(metadata.ledger("bills"), HEAD, put=[segment(7)])
    assert [row.ledger_id for row in metadata.segments.of("orders")] == [7]
    assert metadata.segments.of("bills") == []


def test_names_are_sorted_and_differ_in_more_than_case(metadata: Metadata) -> None:
    metadata.create_ledger("Bills", "i1", {}, exist_ok=False)
    metadata.create_ledger("straße", "i2", {}, exist_ok=False)
    assert metadata.names() == ["Bills", "orders", "straße"]
    for name, there in (("ORDERS", "orders"), ("STRASSE", "straße"), ("bills", "Bills")):
        for exist_ok in (True, False):
            with pytest.raises(Refused, match=f"'{name}' differs from '{there}' only in case"):
                metadata.create_ledger(name, "i3", {}, exist_ok=exist_ok)
    with pytest.raises(AlreadyExists, match="orders"):
        metadata.create_ledger("orders", "i4", {}, exist_ok=False)
    metadata.create_ledger("orders", "i4", {"owner": "you"}, exist_ok=True)
    kept = metadata.ledger("orders")
    assert (kept.incarnation, kept.info.properties[0].value) == ("i0", "me")
    assert metadata.names() == ["Bills", "orders", "straße"]


def test_a_change_from_an_old_version_is_refused_with_both(metadata: Metadata) -> None:
    old = metadata.ledger("orders")
    new = metadata.update_ledger(old, HEAD, put=[segment(1)])
    assert new.version == old.version + 1
    with pytest.raises(Refused, match=r"at version 1 of incarnation i0, .*expects version 0 of incarnation i0"):
        metadata.update_ledger(old, HEAD, put=[segment(2)], committed=[batch("q", 1)])
    assert metadata.ledger("orders") == new
    assert [row.ledger_id for row in metadata.segments.of("orders")] == [1]
    assert metadata.committed_batches("orders") == []


def test_a_change_of_a_deleted_ledger_never_reaches_its_successor(metadata: Metadata) -> None:
    old = metadata.ledger("orders")
    metadata.delete_ledger("orders")
    with pytest.raises(Refused, match="is missing"):
        metadata.update_ledger(old, HEAD, put=[segment(1)])
    metadata.create_ledger("orders", "i9", {}, exist_ok=False)
    with pytest.raises(Refused, match=r"of incarnation i9, .*expects version 0 of incarnation i0"):
        metadata.update_ledger(old, HEAD, put=[segment(1)])
    assert metadata.segments.of("orders") == []


def test_side_rows_go_with_the_list_and_batches_keep_the_newest(metadata: Metadata) -> None:
    record = metadata.ledger("orders")
    record = metadata.update_ledger(record, HEAD, put=[segment(1)], committed=[batch("q", 1), batch("p", 7)])
    sealed = SegmentRecord(1, 256, 0, 10, 300, NOW)
    record = metadata.update_ledger(record, HEAD, put=[sealed], committed=[batch("q", 2)])
    assert metadata.segments.of("orders") == [sealed]
    record = metadata.update_ledger(record, HEAD, put=[segment(2)])
    assert metadata.ledger_ids() == {1, 2}
    metadata.update_ledger(record, HEAD, gone=[1])
    assert metadata.ledger_ids() == {2}
    kept = {b.query: b for b in metadata.committed_batches("orders")}
    assert kept == {"q": batch("q", 2), "p": batch("p", 7)}


def test_deleting_a_ledger_deletes_all_that_is_its_own_and_nothing_else(metadata: Metadata) -> None:
    metadata.create_ledger("bills", "i1", {}, exist_ok=False)
    for number, name in enumerate(("orders", "bills")):
        record = metadata.ledger(name)
        metadata.update_ledger(record, HEAD, put=[segment(number)], committed=[batch("q", 1)])
        metadata.register_schema(name, b"schema", -1)
        metadata.cursors.put(CursorRecord(name, "c", Position(0, 0)), None)
    metadata.delete_ledger("orders")
    with pytest.raises(NotFound, match="orders"):
        metadata.ledger("orders")
    assert not metadata.exists("orders")
    assert metadata.ledger_ids() == {1}
    assert (metadata.committed_batches("orders"), metadata.cursors.names("orders")) == ([], [])
    assert metadata.schema("orders", -1) == (-1, b"")
    assert (metadata.cursors.names("bills"), metadata.schema("bills", -1)) == (["c"], (0, b"schema"))
    assert metadata.committed_batches("bills") == [batch("q", 1)]


def test_ledger_ids_rise_and_are_never_given_again(metadata: Metadata, path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda _: metadata.allocate_ledger_id(), range(64)))
    assert sorted(given) == list(range(64))
    metadata.delete_ledger("orders")
    metadata.close()
    again = Metadata.open(path, lambda: NOW)
    assert again.next_ledger_id() == 64
    assert again.allocate_ledger_id() == 64
    again.close()


def test_a_change_allocates_an_id_that_no_ledger_lists_yet(metadata: Metadata) -> None:
    metadata.allocate_ledger_id()
    record = metadata.update_ledger(metadata.ledger("orders"), HEAD, put=[segment(0)], allocate=True)
    assert (record.new_id, metadata.ledger("orders").new_id) == (1, None)
    assert metadata.unwanted_files.made() == {1}
    assert metadata.allocate_ledger_id() == 2
    with pytest.raises(Refused, match="expects version 0"):
        metadata.update_ledger(replace(record, version=0), HEAD, allocate=True)
    assert metadata.next_ledger_id() == 3
    metadata.update_ledger(record, HEAD, put=[segment(1)])
    assert metadata.unwanted_files.made() == {2}


def test_versions_of_a_schema_count_from_zero(metadata: Metadata) -> None:
    assert metadata.schema("orders", -1) == (-1, b"")
    asked = [(b"a", -1), (b"a", -1), (b"b", -1), (b"b", 0), (b"a", 1), (b"a", 0)]
    answered = [metadata.register_schema("orders", body, after) for body, after in asked]
    assert answered == [(0, b"a"), (0, b"a"), (0, b"a"), (1, b"b"), (2, b"a"), (2, b"a")]
    assert [metadata.schema("orders", version) for version in (0, 1, -1)] == [(0, b"a"), (1, b"b"), (2, b"a")]
    with pytest.raises(NotFound, match="version 3"):
        metadata.schema("orders", 3)
    with pytest.raises(NotFound, match="'none'"):
        metadata.register_schema("none", b"a", -1)


def test_a_store_that_was_taken_over_changes_nothing_any_more(metadata: Metadata, path: Path) -> None:
    mine = metadata.bump_epoch()
    metadata.require_epoch(mine)
    taker = Metadata.open(path, lambda: NOW)
    assert taker.bump_epoch() == mine + 1
    record = metadata.ledger("orders")
    for change in (
        metadata.allocate_ledger_id,
        lambda: metadata.update_ledger(record, HEAD, put=[segment(1)]),
        lambda: metadata.delete_ledger("orders"),
        lambda: metadata.cursors.put(CursorRecord("orders", "c", Position(0, 0)), None),
        lambda: metadata.register_schema("orders", b"a", -1),
    ):
        with pytest.raises(Fenced, match=f"epoch {mine + 1}, this broker has {mine}"):
            change()
    with pytest.raises(Fenced):
        metadata.require_epoch(mine)
    assert (taker.ledger("orders"), taker.next_ledger_id(), taker.ledger_ids()) == (record, 0, set())
    assert (taker.cursors.names("orders"), taker.schema("orders", -1)) == ([], (-1, b""))
    taker.close()


NAMES = st.sampled_from(["a", "b"])


class CompareAndSet(RuleBasedStateMachine):
    """Two handles on one file, records of any age: what is written is what one dictionary would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="ledger-model-")
        path = Path(self.directory.name) / "metadata.sqlite"
        self.handles = [Metadata.create(path, "s", "h", lambda: NOW), Metadata.open(path, lambda: NOW)]
        self.model: dict[str, tuple[str, int, tuple[int, ...]]] = {}
        self.seen: list[LedgerRecord] = []
        self.numbers = itertools.count()

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()
        self.directory.cleanup()

    @rule(name=NAMES, handle=st.integers(0, 1))
    def create(self, name: str, handle: int) -> None:
        incarnation = f"i{next(self.numbers)}"
        self.handles[handle].create_ledger(name, incarnation, {}, exist_ok=True)
        self.model.setdefault(name, (incarnation, 0, ()))
        self.seen.append(self.handles[1 - handle].ledger(name))

    @rule(name=NAMES, handle=st.integers(0, 1))
    def delete(self, name: str, handle: int) -> None:
        self.handles[handle].delete_ledger(name)
        self.model.pop(name, None)

    @rule(handle=st.integers(0, 1), data=st.data())
    def update(self, handle: int, data: st.DataObject) -> None:
        if not self.seen:
            return
        record = data.draw(st.sampled_from(self.seen))
        number = next(self.numbers)
        current = self.model.get(record.name)
        try:
            gone = () if current is None else current[2]
            changed = self.handles[handle].update_ledger(record, HEAD, put=[segment(number)], gone=gone)
        except Refused:
            assert current is None or current[:2] != (record.incarnation, record.version)
            return
        assert current is not None
        assert current[:2] == (record.incarnation, record.version)
        self.model[record.name] = (record.incarnation, record.version + 1, (number,))
        self.seen.append(changed)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for handle in self.handles:
            assert handle.names() == sorted(self.model)
            for name, (incarnation, version, ids) in self.model.items():
                record = handle.ledger(name)
                assert (record.incarnation, record.version) == (incarnation, version)
                assert tuple(row.ledger_id for row in handle.segments.of(name)) == ids


TestCompareAndSet = CompareAndSet.TestCase
TestCompareAndSet.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
