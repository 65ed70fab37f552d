"""Goal: steps of others between the steps of a commit lose no object, and take no segment of another ledger.

Method: tasks without Spark, one store in a directory that acts as the bucket. A request of the commit to the bucket
lets the other step run first: a sweep, an append, a rollover, the same commit again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.metadata.manifest_records import Manifest, ManifestRun
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.commits import CommitRuns, CommittedRun, StagedPart
from pyspark_ledger.ledger.store import direct_ids
from pyspark_ledger.ledger.store.direct_parts import DirectParts
from pyspark_ledger.ledger.tiering.direct_objects import DirectObjects
from tests.rigs.bucket_store import BucketRig, append, log, numbered, payloads
from tests.rigs.direct_sink import of_ledger, put, request, stage, with_first
from tests.rigs.entry import entry

DAY_MS = 24 * 3_600_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options())
    yield rig
    rig.close()


@pytest.fixture
def opened(rig: BucketRig) -> BucketStore:
    broker = rig.host(stagedPartPromotionMinBytes=0)
    log(broker)
    return broker


def at_day(opened: BucketStore, day: int, step: Callable[[], None]) -> None:
    """Run a step of the direct sink with a clock that is some days ahead."""
    opened.store.direct._clock = lambda: system_clock_ms() + day * DAY_MS
    step()
    opened.store.direct._clock = system_clock_ms


def record_unneeded(opened: BucketStore) -> None:
    opened.store.direct.list_unneeded(opened.store.offloads._recorded)


def segments(opened: BucketStore, name: str = "log") -> list[int]:
    return [row.ledger_id for row in opened.store.metadata.segments.of(opened.store.ledger(name).name)]


@pytest.mark.parametrize("request_of_the_commit", ["head", "copy", "put"])
def test_a_sweep_during_a_commit_takes_no_object(
    opened: BucketStore, monkeypatch: pytest.MonkeyPatch, request_of_the_commit: str
) -> None:
    """The commit waits longer than the retention of staged parts, or the clock jumps."""
    parts, swept = [put(opened, 1, 0, numbered(9)), stage(opened, 1, numbered(3, 9))], list[int]()
    if request_of_the_commit == "copy":
        append(opened, [b"a"])

    def sweep() -> None:
        at_day(opened, 8, lambda: record_unneeded(opened))
        swept.append(opened.store.offloads.cleaner.sweep())

    with_first(monkeypatch, DirectObjects, request_of_the_commit, sweep, after=True)
    assert not opened.store.commits.commit(request(1, parts)).repeated
    assert swept == [0]
    assert payloads(opened)[-12:] == numbered(12)


def test_an_object_that_a_sweep_has_recorded_is_refused(opened: BucketStore) -> None:
    part = put(opened, 1, 0, numbered(9))
    at_day(opened, 8, lambda: record_unneeded(opened))
    with pytest.raises(NotFound, match="Run the batch again"):
        opened.store.commits.commit(request(1, [part]))
    assert opened.store.offloads.cleaner.sweep() == 1
    opened.store.commits.commit(request(1, [put(opened, 1, 0, numbered(7))]))
    assert payloads(opened) == numbered(7)


def test_a_decided_batch_is_finished_at_any_age_of_its_objects(opened: BucketStore) -> None:
    part, ledger = put(opened, 1, 0, numbered(9)), opened.store.ledger("log")
    run = ManifestRun(ledger.name, ledger.incarnation, [part])
    opened.store.metadata.manifests.put(Manifest("q", 1, 7, 1, [run]))
    opened.store.commits._unfinished.add("q")
    at_day(opened, 9, lambda: record_unneeded(opened))
    assert opened.store.offloads.cleaner.sweep() == 0
    at_day(opened, 9, lambda: opened.store.commits.finish("q"))
    assert payloads(opened) == numbered(9)


@pytest.mark.parametrize("small_first", [True, False])
def test_joined_parts_take_no_id_of_another_ledger(
    rig: BucketRig, opened: BucketStore, monkeypatch: pytest.MonkeyPatch, *, small_first: bool
) -> None:
    """The neighbour of the small part has the first or the last id of its reservation."""
    monkeypatch.setattr(direct_ids, "_TASKS", 2)
    log(opened, "other")

    def put_others() -> list[StagedPart]:
        return [put(opened, 1, task, numbered(3, 3 * task), query="o", ledger="other") for task in (0, 1)]

    others = put_others() if small_first else []
    large = put(opened, 1, 4 if small_first else 1, numbered(3, 3))
    others = others or put_others()
    opened.store.commits.commit(request(1, others, query="o", ledger="other"))
    small = stage(opened, 1, numbered(3, 0 if small_first else 6))
    opened.store.commits.commit(request(1, [small, large] if small_first else [large, small]))
    next_broker = rig.host("b")
    assert payloads(next_broker, "other") == numbered(6)
    assert payloads(next_broker) == (numbered(6) if small_first else numbered(6, 3))


def test_appends_go_on_while_objects_are_copied(opened: BucketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    part, ledger = put(opened, 1, 0, numbered(9)), opened.store.ledger("log")
    append(opened, [b"a"])
    with_first(monkeypatch, DirectObjects, "copy", lambda: ledger.append([entry(b"b")]).result(10))
    opened.store.commits.commit(request(1, [part]))
    assert payloads(opened) == [b"a", b"b", *numbered(9)]


def test_a_segment_that_is_listed_while_objects_are_copied(
    rig: BucketRig, opened: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = put(opened, 1, 0, numbered(9))
    append(opened, [b"a"])

    def list_another() -> None:
        opened.store.ledger("log").roll_over()
        append(opened, [b"b"])

    with_first(monkeypatch, DirectObjects, "copy", list_another)
    opened.store.commits.commit(request(1, [part]))
    assert payloads(opened) == [b"a", b"b", *numbered(9)]
    assert segments(opened) == sorted(segments(opened))
    assert opened.store.offloads.cleaner.sweep() == 2, "the object of the task, and the first copy"
    assert payloads(opened) == [b"a", b"b", *numbered(9)]


def test_a_call_that_is_repeated_while_it_runs_copies_no_object(
    rig: BucketRig, opened: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = put(opened, 1, 0, numbered(9))
    append(opened, [b"a"])
    with ThreadPoolExecutor(1) as pool:
        repeated: list[Future[CommittedRun]] = []

        def repeat() -> None:
            repeated.append(pool.submit(opened.store.commits.commit, request(1, [part])))
            wait(repeated, 0.3)

        with_first(monkeypatch, DirectObjects, "copy", repeat)
        assert not opened.store.commits.commit(request(1, [part])).repeated
        assert repeated[0].result(10).repeated
    assert payloads(opened) == [b"a", *numbered(9)]
    assert opened.store.offloads.cleaner.sweep() == 1, "only the object of the task"


def forget_batch_writes(opened: BucketStore) -> None:
    """Delete the records of batch writes, as with a short retention, which is lengthened again."""
    settings = opened.store._settings
    kept = settings.stagingRetentionSeconds
    object.__setattr__(settings, "stagingRetentionSeconds", -1)
    opened.store.commits.forget_before(system_clock_ms() + 1)
    opened.store.ledger("log").change_properties({"changed": "yes"}, [])
    object.__setattr__(settings, "stagingRetentionSeconds", kept)


@pytest.mark.parametrize("several", [False, True])
def test_a_batch_write_without_a_record_is_not_committed_again(opened: BucketStore, *, several: bool) -> None:
    parts = [put(opened, 1, task, numbered(9, 9 * task)) for task in range(2)]

    def commit() -> None:
        if several:
            opened.store.commits.commit_several(CommitRuns("q", 1, 7, 1, [of_ledger("log", *parts)], once=True))
        else:
            opened.store.commits.commit(msgspec.structs.replace(request(1, parts), once=True))

    commit()
    forget_batch_writes(opened)
    assert several or opened.store.ledger("log").committed_batch("q") is None
    with pytest.raises(Refused, match=r"is segment \d+ of ledger .* already"):
        commit()
    assert payloads(opened) == numbered(18)


def crash() -> None:
    raise RuntimeError("crash")


@pytest.mark.parametrize("repeated", [False, True])
def test_a_copied_batch_write_without_a_record_is_not_committed_again(
    rig: BucketRig, opened: BucketStore, monkeypatch: pytest.MonkeyPatch, *, repeated: bool
) -> None:
    """A restarted broker does not know the keys, and copies the objects. A crash may keep it from deleting them."""
    part = put(opened, 1, 0, numbered(9))
    once = msgspec.structs.replace(request(1, [part]), once=True)
    second = rig.host("b", stagedPartPromotionMinBytes=0)
    if repeated:
        with_first(monkeypatch, DirectParts, "committed", crash)
        with pytest.raises(RuntimeError, match="crash"):
            second.store.commits.commit(once)
        assert second.store.commits.commit(once).repeated
    else:
        second.store.commits.commit(once)
    assert second.store.offloads.cleaner.sweep() == 1, "the object of the task"
    forget_batch_writes(second)
    with pytest.raises(NotFound, match="Run the batch again"):
        second.store.commits.commit(once)
    assert payloads(second) == numbered(9)


@pytest.mark.parametrize("repeated", [False, True])
def test_no_commit_deletes_the_segment_of_another_ledger(
    rig: BucketRig, opened: BucketStore, *, repeated: bool
) -> None:
    part = put(opened, 1, 0, numbered(9))
    opened.store.commits.commit(request(1, [part]))
    log(opened, "other")
    wrong = request(1, [part], query="o", ledger="other")
    if repeated:
        opened.store.commits.commit(request(1, [stage(opened, 1, [b"a"], query="o")], query="o", ledger="other"))
        assert opened.store.commits.commit(wrong).repeated
    else:
        with pytest.raises(Refused, match="of ledger 'public/default/persistent/log' already"):
            opened.store.commits.commit(wrong)
    assert opened.store.offloads.cleaner.sweep() == 0
    assert payloads(rig.host("b")) == numbered(9)
