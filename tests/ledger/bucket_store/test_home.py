"""Goal: everything acknowledged is in the bucket, and any host continues. Method: hosts that lose their disk."""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from tests.rigs.bucket_store import BucketRig, append, cursor, log, numbered, payloads
from tests.rigs.cursors import given
from tests.rigs.entry import entry


@pytest.mark.thorough
def test_another_host_continues_where_the_disk_was_lost(rig: BucketRig) -> None:
    first = rig.host("a")
    positions = append(first, numbered(30))
    rig.lose_disk("a")
    second = rig.host("b")
    assert payloads(second) == numbered(30)
    later = append(second, numbered(5, 30))
    assert (later[0].ledger_id, later[0].entry_id) == (positions[-1].ledger_id, positions[-1].entry_id + 1), (
        "the open segment continues"
    )
    third = rig.host("c")
    assert payloads(third) == numbered(35)


@pytest.mark.thorough
def test_a_broker_that_was_replaced_acknowledges_nothing(rig: BucketRig) -> None:
    first = rig.host("a")
    append(first, numbered(3))
    second = rig.host("b")
    with pytest.raises(LedgerError):
        append(first, [b"lost"])
    append(second, [b"3"])
    assert payloads(rig.host("c"))[:3] == numbered(3)
    assert payloads(rig.opened[-1])[-1] == b"3"
    assert len(rig.lost) >= 1


def test_an_orderly_end_seals_nothing(rig: BucketRig) -> None:
    first = rig.host("a")
    append(first, numbered(3))
    first.close()
    second = rig.host("a")
    assert append(second, [b"3"])[0].entry_id == 3
    assert payloads(second) == numbered(4)


@pytest.mark.thorough
def test_rollovers_and_several_ledgers_are_built_again(rig: BucketRig) -> None:
    first = rig.host("a")
    for name in ("one", "two", "three"):
        append(first, numbered(11), name, entries=4)
    first.store.delete_ledger("two")
    second = rig.host("b")
    assert payloads(second, "one") == numbered(11)
    assert payloads(second, "three") == numbered(11)
    with pytest.raises(NotFound):
        second.store.ledger("two")
    append(second, numbered(3, 11), "one", entries=4)
    assert payloads(rig.host("c"), "one") == numbered(14)


@pytest.mark.thorough
def test_cursors_survive_with_their_acknowledgements(rig: BucketRig) -> None:
    first = rig.host("a")
    positions = append(first, numbered(10))
    cursor(first)
    segment = positions[0].ledger_id
    first.store.cursors.acknowledge("log", "c", given((segment, 0), (segment, 1), (segment, 5)))
    second = rig.host("b")
    state = second.store.cursors.describe(DescribeCursor("log", "c"))
    assert state.next_position == Position(segment, 2)
    second.store.cursors.acknowledge("log", "c", given((segment, 2), (segment, 3), (segment, 4)))
    third = rig.host("c")
    assert third.store.cursors.describe(DescribeCursor("log", "c")).next_position == Position(segment, 6)


def test_a_large_append_spans_objects(rig: BucketRig) -> None:
    first = rig.host("a")
    ledger = log(first)
    batch = [entry(b"%04d" % number + bytes(1_000)) for number in range(60)]
    ledger.append(batch).result(30)
    assert [found[:4] for found in payloads(rig.host("b"))] == [b"%04d" % number for number in range(60)]


def test_changed_settings_are_kept_in_the_manifest(rig: BucketRig) -> None:
    first = rig.host("a")
    first.keep_settings({"maxConcurrentRequests": 77})
    with pytest.raises(Refused, match="have 40011 bytes, at most 32768 are allowed in the manifest"):
        first.keep_settings({"name": "x" * 40_000})
    assert rig.host("b").manifest.manifest.settings == {"maxConcurrentRequests": 77}
    with pytest.raises(Fenced):
        first.keep_settings({})
    assert isinstance(first.wal.failed, Fenced), "a broker that learns of its successor ends"
