"""Goal: after a crash at any step nothing is lost, the next run completes, and no object is left over.

Method: every call of the protocol to the record or to the object storage is a step. For each step, the broker dies just
before and just after it, and another broker takes the store over. A directory stands for the bucket, with the same
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Fenced
from pyspark_ledger.ledger.objects.object_store import ListedObject
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, OffloadPrefix
from pyspark_ledger.ledger.tiering.direct_objects import direct_metadata
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.offload import HOUR, OffloadRig

STORE_CALLS = ("put", "begin_upload", "put_part", "complete", "delete", "abort", "get", "get_range", "head")


class Died(BaseException):
    """Death of the broker's process. No code of the project may handle this error."""


class DyingStore:
    """An object store in whose `at`-th call the process dies, before or after the call took effect."""

    def __init__(self, real: Any, at: int, *, after: bool) -> None:
        self.real, self.at, self.after, self.calls = real, at, after, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        return self.dying(found) if name in STORE_CALLS else found

    def dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **rest: Any) -> Any:
            self.calls += 1
            if self.calls == self.at and not self.after:
                raise Died
            try:
                return call(*args, **rest)
            finally:
                if self.calls == self.at:
                    raise Died

        return run


def wound(rig: OffloadRig, at: int, *, after: bool) -> DyingStore:
    """Make the rig's offloader die in a call. The next broker has an intact offloader."""
    dying = DyingStore(rig.objects, at, after=after)
    rig.copies._store_at = lambda *_: dying  # type: ignore[method-assign]
    return dying


def heal(rig: OffloadRig) -> None:
    rig.copies.windows.close()
    rig.copies = rig.offloader = ObjectStoreOffloader(rig.address, rig.options, window_bytes=1024, cache_bytes=8192)
    rig.crash()


def whole(rig: OffloadRig, payloads: list[bytes]) -> None:
    """Require that nothing is lost and that the bucket has exactly the objects of the records."""
    assert rig.contents() == payloads
    rig.store.offloads.cleaner.sweep()
    rig.store.offloads.cleaner.sweep_left()
    stated = {str(attempt.attempt) for attempt in rig.attempts().values() if attempt.complete}
    assert {key.partition("-ledger-")[0] for key in rig.stored()} == stated
    assert list(rig.objects.uploads()) == []
    assert rig.store.metadata.unwanted.all() == []


@pytest.mark.fault
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("parts_put_whole", [1, 0], ids=["whole", "parts"])
@pytest.mark.parametrize("at", range(1, 14))
def test_the_broker_dies_in_a_call_to_the_object_storage(
    make_rig: Callable[..., OffloadRig], monkeypatch: pytest.MonkeyPatch, at: int, after: bool, parts_put_whole: int
) -> None:
    monkeypatch.setattr("pyspark_ledger.offload.upload._PARTS_PUT_WHOLE", parts_put_whole)
    rig = make_rig(upload_threads=1)
    payloads = rig.fill(2)
    dying = wound(rig, at, after=after)
    with pytest.raises(Died):
        rig.offload()
    assert dying.calls >= at
    heal(rig)
    whole(rig, payloads)
    assert rig.offload().state == "done"
    assert rig.complete() == rig.ids()[: len(rig.complete())]
    assert len(rig.complete()) >= 2
    whole(rig, payloads)
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    whole(rig, payloads)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
def test_the_broker_dies_at_a_change_of_the_record(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    payloads = rig.fill(1)
    real, calls = rig.store.metadata.update_ledger, 0

    def dying(*args: Any, **rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            raise Fenced("this broker is dead")
        done = real(*args, **rest)
        if calls == at:
            raise Fenced("this broker is dead")
        return done

    monkeypatch.setattr(rig.store.metadata, "update_ledger", dying)
    # In the write stage of a log only a project error can be raised: an error after which the broker does nothing.
    assert rig.offload().state == "cancelled"
    assert calls == at
    monkeypatch.undo()
    heal(rig)
    assert rig.contents() == payloads
    assert rig.offload().state == "done"
    whole(rig, payloads)


@pytest.mark.parametrize("at", range(1, 4))
def test_the_broker_dies_while_it_deletes_what_retention_let_go(rig: OffloadRig, at: int) -> None:
    rig.fill(2)
    rig.offload()
    rig.store.policies.change(ChangePolicy("log", values={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}))
    rig.store.ledger("log").trim()
    wound(rig, at, after=False)
    with pytest.raises(Died):
        rig.store.offloads.cleaner.sweep()
    heal(rig)
    rig.store.offloads.cleaner.sweep()
    assert rig.stored() == []
    assert rig.store.metadata.unwanted.all() == []


def test_broker_killed_before_deleting_unlisted_local_data_deletes_later(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = rig.fill(2)
    rig.offload()
    rig.now += 5 * HOUR
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    rig.store.ledger("log").trim()
    monkeypatch.undo()
    assert len(rig.local()) == 3
    heal(rig)
    assert rig.contents() == payloads
    assert rig.local() == {rig.ids()[2]}


def test_local_data_deleted_before_a_reader_maps_them_are_read_from_bucket(rig: OffloadRig) -> None:
    payloads = rig.fill(1)
    rig.store.policies.change(ChangePolicy("log", values={"managedLedgerOffloadDeletionLagInMillis": 0}))
    rig.offload()
    before = rig.store.ledger("log").snapshot
    rig.store.ledger("log").trim()
    assert before.segments[0].path.exists() is False
    rig.store.ledger("log")._snapshot = before  # the snapshot that a reader took just before
    assert rig.contents() == payloads


def test_a_sidecar_that_is_lost_with_the_data_comes_back_from_the_bucket(rig: OffloadRig) -> None:
    payloads = rig.fill(2)
    rig.offload()
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    rig.store.close()
    for ledger_id in (0, 1):
        (rig.path / "ledgers" / f"{ledger_id}.index").unlink()
    rig.store = rig._open()
    assert rig.contents() == payloads
    assert (rig.path / "ledgers" / "0.index").exists()


def test_sidecar_without_its_object_is_made_from_the_data_object(
    make_rig: Callable[..., OffloadRig],
) -> None:
    rig = make_rig(entry_index=False)
    payloads = rig.fill(2, 20, size=200)
    rig.offload()
    assert len(rig.stored()) == 4
    rows = rig.store.ledger("log").snapshot.segments[0].index().rows()
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    rig.store.close()
    (rig.path / "ledgers" / "0.index").unlink()
    rig.store = rig._open()
    assert rig.contents() == payloads
    assert (rig.store.ledger("log").snapshot.segments[0].index().rows() == rows).all()


def test_an_orphan_of_this_store_is_found_by_a_listing_and_others_stay(rig: OffloadRig) -> None:
    payloads = rig.fill(1)
    rig.offload()
    kept = rig.stored()
    gone, other = "0" * 8 + "-0000-4000-8000-" + "0" * 12, "1" * 8 + "-0000-4000-8000-" + "0" * 12
    for suffix in ("", "-index", "-entries"):
        rig.objects.put(f"{gone}-ledger-7{suffix}", b"x", {"pulsarClusterName": rig.store.store_id})
        rig.objects.put(f"{other}-ledger-7{suffix}", b"x", {"pulsarClusterName": "another"})
    rig.objects.put("no-object-of-ours", b"x", {"pulsarClusterName": rig.store.store_id})
    assert rig.store.offloads.offload(OffloadPrefix("log", sweep=True)).swept == 1
    others = {f"{other}-ledger-7{suffix}" for suffix in ("", "-index", "-entries")}
    assert set(rig.stored()) == {*kept, "no-object-of-ours", *others}
    assert rig.contents() == payloads


def test_a_data_object_of_a_task_is_swept_when_no_batch_can_commit_it(rig: OffloadRig) -> None:
    rig.fill(1)
    put, young = "0" * 8 + "-0000-4000-8000-" + "0" * 12, OffloadPrefix("log", sweep=True)
    rig.objects.put(f"{put}-ledger-7", b"x", direct_metadata({"pulsarClusterName": rig.store.store_id}, 1))
    rig.now = system_clock_ms() + rig.settings.stagingRetentionSeconds * 1000 - HOUR
    assert rig.store.offloads.offload(young).swept == 0
    rig.now += 2 * HOUR
    assert rig.store.offloads.offload(young).swept == 1
    assert rig.stored() == []


def test_a_sweep_spares_an_offload_that_begins_during_its_listing(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads, real = rig.fill(1), rig.objects.objects

    def meanwhile(*values: Any, **named: Any) -> Iterator[ListedObject]:
        monkeypatch.undo()
        rig.offload()
        yield from real(*values, **named)

    monkeypatch.setattr(rig.objects, "objects", meanwhile)
    assert rig.store.offloads.offload(OffloadPrefix("log", sweep=True)).swept == 0
    assert len(rig.stored()) == 3
    assert rig.contents() == payloads


def test_a_cursor_holds_back_objects_as_it_holds_back_files(rig: OffloadRig) -> None:
    payloads = rig.fill(2)
    rig.offload()
    rig.store.cursors.open(OpenCursor("log", "slow", EARLIEST))
    rig.store.policies.change(ChangePolicy("log", values={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}))
    assert rig.store.ledger("log").trim().ledgers == []
    assert len(rig.stored()) == 6
    assert rig.contents() == payloads
