"""Goal: large staged parts become segments without a copy, and every reader finds them as it finds other segments.

Method: a store with a low limit, parts of every size, and commits that are killed before and after each step.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.log import writer
from pyspark_ledger.ledger.log.staging import promotion
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.commits import CommitRuns, LedgerParts
from pyspark_ledger.ledger.segment.verification import verify_segment
from pyspark_ledger.ledger.store.repair import find, repair
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from tests.rigs.entry import entry, parsed
from tests.rigs.log import NOW, LogRig
from tests.rigs.promotion import BLOCK_BYTES, LARGE, part_run, payload, request, stage

FROM = 3 * LARGE


@pytest.fixture
def rig(store_path: Path) -> Iterator[LogRig]:
    rig = LogRig(store_path, stagedPartPromotionMinBytes=FROM)
    create(rig)
    yield rig
    rig.store.close()


def create(rig: LogRig) -> None:
    rig.store.create_ledger(CreateLedger("log", exist_ok=True, block_bytes=BLOCK_BYTES))


def append(rig: LogRig, value: bytes) -> Position:
    return rig.store.ledger("log").append([entry(value)]).result()


def large(name: str, entries: int = 6) -> list[bytes]:
    return [payload(f"{name}{number}") for number in range(entries)]


def verify(rig: LogRig) -> int:
    """Compare every byte of all sealed segments with their records and indexes, and count the entries."""
    log, count = rig.store.ledger("log"), 0
    for row in rig.store.metadata.segments.of(log.name):
        segment = log.snapshot.segments.find(row.ledger_id)
        if segment is None or not segment.close_ms:
            continue
        for index in (segment.index(), None):
            verify_segment(
                segment.path, row.ledger_id, entries=segment.entries, file_bytes=row.file_bytes,
                first_row=row.first_row, describe=entry_traits, index=index,
            )  # fmt: skip
        count += segment.entries
    return count


def left(rig: LogRig) -> list[str]:
    return [path.name for path in (rig.path / "staging").rglob("*.part")]


def stamps(rig: LogRig) -> list[tuple[int, int]]:
    blocks = rig.store.ledger("log").blocks(PositionRange(EARLIEST, LATEST), 1)
    return [(e.stamp.timestamp_ms, e.stamp.row_end) for block in blocks for _, e in parsed(block) if e.stamp]


def test_a_large_part_becomes_a_segment_without_a_copy(rig: LogRig) -> None:
    before = append(rig, b"before")
    rows = large("a")
    part = stage(rig.store, 1, rows)
    inode = (rig.path / "staging" / part.part).stat().st_ino
    rig.now += 5000
    done = rig.store.commits.commit(request(1, [part]))
    assert (done.first.entry_id, done.entries, done.rows, done.repeated) == (0, 6, 6, False)
    segment = rig.store.ledger("log").snapshot.segments[-1]
    assert segment.path.stat().st_ino == inode
    assert (segment.entries, segment.rows, segment.first_row) == (7, 6, 1)
    assert done.end == Position(done.first.ledger_id, 7) == rig.store.ledger("log").snapshot.end
    assert rig.contents() == [b"before", *rows]
    after = append(rig, b"after")
    assert before.ledger_id < done.first.ledger_id < after.ledger_id
    assert stamps(rig) == [(NOW, 1), *((NOW + 5000, row) for row in range(2, 8)), (NOW + 5000, 7), (NOW + 5000, 8)]
    assert rig.store.ledger("log").seek_time(NOW + 1) == done.first
    assert verify(rig) == 8
    assert not left(rig)
    rig.reopen()
    assert rig.contents() == [b"before", *rows, b"after"]
    assert verify(rig) == 9


def test_large_and_small_parts_keep_the_order_of_the_tasks(rig: LogRig) -> None:
    groups = [[b"1", b"2"], large("a"), [b"3"], [b"4"], [b"5"], large("b", 9), large("c"), [b"6"]]
    done = rig.store.commits.commit(request(1, [stage(rig.store, 1, group) for group in groups]))
    rows = [row for group in groups for row in group]
    assert rig.contents() == rows
    assert (done.entries, done.rows) == (len(rows), len(rows))
    segments = rig.store.ledger("log").snapshot.segments
    assert [segment.entries for segment in segments] == [3, 7, 4, 10, 7, 2]
    assert (done.first, done.end) == (Position(segments[0].ledger_id, 0), Position(segments[-1].ledger_id, 2))
    assert verify(rig) == len(rows) + 6
    assert not left(rig)


@pytest.mark.parametrize("rows", [large("a", 2), [payload(f"{n}", 8192) for n in range(40)]], ids=["small", "thin"])
def test_small_parts_and_parts_of_small_entries_are_copied(rig: LogRig, rows: list[bytes]) -> None:
    append(rig, b"before")
    rig.store.commits.commit(request(1, [stage(rig.store, 1, rows)]))
    (segment,) = rig.store.ledger("log").snapshot.segments
    assert segment.entries == len(rows) + 2
    assert rig.contents() == [b"before", *rows]
    rig.crash()
    assert rig.contents() == [b"before", *rows]


def test_no_part_is_promoted_if_the_setting_is_off(store_path: Path) -> None:
    rig = LogRig(store_path, stagedPartPromotionMinBytes=-1)
    create(rig)
    part = stage(rig.store, 1, large("a"))
    assert part.block_bytes == 0
    rig.store.commits.commit(request(1, [part]))
    assert [segment.close_ms for segment in rig.store.ledger("log").snapshot.segments] == [0]
    assert rig.contents() == large("a")
    rig.store.close()


def test_a_part_for_other_blocks_is_copied(rig: LogRig) -> None:
    with PartWriter.to_file(rig.store.commits.open_part("q", 1), part_run(1, block_bytes=2 * BLOCK_BYTES)) as file:
        for value in large("a"):
            file.write([entry(value, run=1)], 1)
        part = file.close()
    rig.store.commits.commit(request(1, [part]))
    assert [segment.close_ms for segment in rig.store.ledger("log").snapshot.segments] == [0]
    assert rig.contents() == large("a")


def test_a_repeated_batch_commits_nothing_new(rig: LogRig) -> None:
    first = rig.store.commits.commit(request(1, [stage(rig.store, 1, large("a"))]))
    for _ in range(2):
        again = rig.store.commits.commit(request(1, [stage(rig.store, 1, large("b"))]))
        assert (again.repeated, again.first, again.end) == (True, first.first, first.end)
        rig.crash()
    assert rig.contents() == large("a")
    assert not left(rig)


@pytest.mark.parametrize("fault", ["locked", "second name"])
def test_a_part_that_another_broker_may_change_is_copied(rig: LogRig, tmp_path: Path, fault: str) -> None:
    part = stage(rig.store, 1, large("a"))
    path = rig.path / "staging" / part.part
    with path.open("rb") as other:
        if fault == "locked":
            fcntl.flock(other, fcntl.LOCK_EX)
        else:
            os.link(path, tmp_path / "second")
        rig.store.commits.commit(request(1, [part]))
    assert [segment.close_ms for segment in rig.store.ledger("log").snapshot.segments] == [0]
    assert rig.contents() == large("a")
    assert len(rig.files()) == 2, "files of the promotion are left"


def test_a_disk_error_before_the_list_leads_to_a_copy(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(promotion.os, "link", fails)
    rig.store.commits.commit(request(1, [stage(rig.store, 1, large("a")), stage(rig.store, 1, large("b"))]))
    assert rig.contents() == large("a") + large("b")
    assert len(rig.files()) == 2
    assert not rig.store.metadata.unwanted_files.made()


@pytest.mark.parametrize("listed", [False, True])
def test_an_unknown_result_of_the_list_is_found_out(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    append(rig, b"before")
    part, real = stage(rig.store, 1, large("a")), Metadata.update_ledger

    def fails(self: Metadata, *arguments: Any, **rest: Any) -> Any:
        if len(rest.get("committed", ())) == 0 or not rest["put"]:
            return real(self, *arguments, **rest)
        if listed:
            real(self, *arguments, **rest)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Metadata, "update_ledger", fails)
        with pytest.raises(Exception, match="Input/output error"):
            rig.store.commits.commit(request(1, [part]))
    done = rig.store.commits.commit(request(1, [part]))
    assert done.repeated == listed
    append(rig, b"after")
    assert rig.contents() == [b"before", *large("a"), b"after"]
    rig.crash()
    assert rig.contents() == [b"before", *large("a"), b"after"]
    verify(rig)


def test_a_batch_for_several_ledgers_is_promoted_in_each(rig: LogRig) -> None:
    rig.store.create_ledger(CreateLedger("other", block_bytes=BLOCK_BYTES))
    runs = [
        LedgerParts("log", [stage(rig.store, 1, large("a")), stage(rig.store, 1, [b"1"])]),
        LedgerParts("other", [stage(rig.store, 1, large("b"))]),
    ]
    rig.store.commits.commit_several(CommitRuns("q", 1, 7, 1, runs))
    assert (rig.contents(), rig.contents("other")) == ([*large("a"), b"1"], large("b"))
    assert all(s.close_ms for name in ("log", "other") for s in rig.store.ledger(name).snapshot.segments)
    assert not left(rig)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"rows": 5}, Refused), ({"block_bytes": BLOCK_BYTES // 2}, Corrupt), ({"crc32c": 1}, Corrupt)],
)
def test_a_part_that_its_writer_described_otherwise_is_refused(
    rig: LogRig, change: dict[str, int], error: type[Exception]
) -> None:
    part = msgspec.structs.replace(stage(rig.store, 1, large("a")), **change)
    with pytest.raises(error):
        rig.store.commits.commit(request(1, [part]))
    assert rig.contents() == []


def test_every_flipped_byte_outside_of_the_stamps_is_found(rig: LogRig) -> None:
    rows = [payload(f"{n}", 70_000) for n in range(5)]
    part = stage(rig.store, 1, rows)
    path = rig.path / "staging" / part.part
    whole = path.read_bytes()
    opened = StagingArea(rig.path / "staging", str, segment_from=FROM).open(part)
    stamped = {at for offset in opened.offsets for at in range(offset + 18, offset + 36)}
    heads = {at for offset in opened.offsets for at in range(offset, offset + 60)} | set(range(128))
    block = set(range(BLOCK_BYTES - 20, BLOCK_BYTES + 200))
    for at in sorted((heads | block | {len(whole) - 1}) - stamped):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((Corrupt, Refused)):
            rig.store.commits.commit(request(1, [part]))
    path.write_bytes(whole[:-1])
    with pytest.raises(Corrupt):
        rig.store.commits.commit(request(1, [part]))
    path.write_bytes(whole)
    rig.store.commits.commit(request(1, [part]))
    assert rig.contents() == rows


def test_the_sidecar_of_a_promoted_segment_is_rebuilt(rig: LogRig) -> None:
    rig.store.commits.commit(request(1, [stage(rig.store, 1, large("a"))]))
    segment = rig.store.ledger("log").snapshot.segments[0]
    rows = segment.index().rows().tolist()
    rig.store.close()
    segment.path.with_suffix(".index").unlink()
    rig.store = rig._open()
    assert rig.store.ledger("log").snapshot.segments[0].index().rows().tolist() == rows
    assert verify(rig) == 7


def test_promoted_segments_that_the_metadata_lost_are_repaired(rig: LogRig) -> None:
    append(rig, b"before")
    rig.store.ledger("log").roll_over()
    rig.store.metadata._file._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    older = (rig.path / "metadata.sqlite").read_bytes()
    parts = [stage(rig.store, 1, large("a")), stage(rig.store, 1, large("b"))]
    rig.store.commits.commit(request(1, parts))
    rig.store.close()
    (rig.path / "metadata.sqlite").write_bytes(older)
    places = find(rig.path).places()
    assert [(found.entries, found.rows) for found in places] == [(7, 6), (7, 6)]
    assert repair(rig.path, lambda: NOW, accept=True) == places
    rig.store = rig._open()
    assert rig.contents() == [b"before", *large("a"), *large("b")]
    assert rig.store.commits.commit(request(1, parts)).repeated
    assert verify(rig) == 15


def test_committed_files_are_kept_if_their_list_is_lost(rig: LogRig) -> None:
    """The records of the allocated ids are there, the listing transaction is lost."""
    parts, older = [stage(rig.store, 1, large("a"))], b""
    real = writer.link_segments

    def copying(*arguments: Any) -> Any:
        nonlocal older
        rig.store.metadata._file._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        older = (rig.path / "metadata.sqlite").read_bytes()
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "link_segments", copying)
        rig.store.commits.commit(request(1, parts))
    rig.store.close()
    (rig.path / "metadata.sqlite").write_bytes(older)
    assert [found.entries for found in repair(rig.path, lambda: NOW, accept=True)] == [7]
    rig.store = rig._open()
    assert rig.contents() == large("a")


STEPS: list[tuple[Any, str]] = [
    (Metadata, "allocate_ledger_ids"),
    (Metadata, "update_ledger"),
    (disk, "hold"),
    (disk, "sync_data"),
    (disk, "sync_directory"),
    (promotion, "create_sealed"),
    (promotion.os, "link"),
    (writer, "acknowledge_segments"),
    (StagingArea, "remove"),
    (StagingArea, "remove_joined"),
]


def committed_until(rig: LogRig, run: Any, last: int) -> bool:
    """Commit a run in a child that kills itself at step `last`. Return whether it was killed."""
    child = os.fork()
    if not child:
        os.close(2)
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

        def watched(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **rest: Any) -> Any:
                step()
                answer = real(*arguments, **rest)
                step()
                return answer

            return call

        try:
            rig.store = rig._open(take_over=True)
            append(rig, b"open")
            for kind, name in STEPS:
                setattr(kind, name, watched(getattr(kind, name)))
            rig.store.commits.commit(run)
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 3
    return False


@pytest.mark.slow
def test_a_commit_killed_at_any_step_leaves_the_batch_or_nothing(rig: LogRig) -> None:
    rows: list[bytes] = []
    results, batch, step = set(), 0, 0
    killed = True
    while killed:
        step, batch = step + 1, batch + 1
        groups = [large("a", 3), [b"%d" % batch], large("b", 4)]
        run = request(batch, [stage(rig.store, batch, group) for group in groups])
        rig.store.close()
        killed = committed_until(rig, run, step)
        rig.store = rig._open()
        rows.append(b"open")
        wanted = [*rows, *(row for group in groups for row in group)]
        committed = rig.contents() == wanted
        assert committed or rig.contents() == rows, step
        results.add(committed)
        # The same commit again, or the batch with other rows.
        if step % 2 and not committed:
            run, wanted = request(batch, [stage(rig.store, batch, large("c"))]), [*rows, *large("c")]
        assert rig.store.commits.commit(run).repeated == committed
        assert rig.contents() == wanted
        rows = wanted
        verify(rig)
        names = {f"{segment.ledger_id}" for segment in rig.store.ledger("log").snapshot.segments}
        assert {name.partition(".")[0] for name in rig.files()} == names, step
        assert not rig.store.metadata.unwanted_files.made()
        append(rig, b"next")
        rows.append(b"next")
    assert results == {False, True}
    assert step > 40
    rig.store.commits.commit(request(batch + 1, [stage(rig.store, batch + 1, [b"last"])]))
    assert not left(rig)
