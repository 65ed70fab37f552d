"""Goal: a commit of many parts keeps their order, and a part that is swept while its task writes loses no batch.

Method: a store with a low limit for promoted parts. Parts are deleted by a later batch, and by a broker that starts
after their retention.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from tests.rigs.entry import entry
from tests.rigs.log import LogRig
from tests.rigs.promotion import BLOCK_BYTES, LARGE, part_run, payload, request, stage

PARTS = 1_000


@pytest.fixture
def rig(store_path: Path) -> Iterator[LogRig]:
    rig = LogRig(store_path, stagedPartPromotionMinBytes=LARGE)
    rig.store.create_ledger(CreateLedger("log", block_bytes=BLOCK_BYTES))
    yield rig
    rig.store.close()


def left(rig: LogRig) -> list[str]:
    return [path.name for path in (rig.path / "staging").rglob("*.part")]


@pytest.mark.slow
def test_a_thousand_parts_become_segments_in_their_order(rig: LogRig) -> None:
    """Every tenth part is small."""
    groups = [[payload(f"{number}", 10 if number % 10 == 3 else LARGE)] for number in range(PARTS)]
    rows = [row for group in groups for row in group]
    run = request(1, [stage(rig.store, 1, group) for group in groups])
    done = rig.store.commits.commit(run)
    assert (done.entries, done.rows, done.repeated) == (PARTS, PARTS, False)
    assert rig.contents() == rows
    segments = rig.store.ledger("log").snapshot.segments
    assert [segment.first_row for segment in segments if segment.entries] == list(range(PARTS))
    assert not left(rig)
    assert rig.store.commits.commit(run).repeated
    rig.crash()
    assert rig.contents() == rows
    assert rig.store.commits.commit(run).repeated


def test_a_part_that_is_swept_while_its_task_writes_fails_its_commit(rig: LogRig) -> None:
    """A broker starts after the retention of staged parts, as after a long pause. The batch then runs again."""
    with PartWriter.to_file(rig.store.commits.open_part("q", 1), part_run(1)) as part:
        part.write([entry(payload("a"), run=1)], 1)
        rig.now = system_clock_ms() + rig.settings.stagingRetentionSeconds * 1000 + 1
        rig.reopen()
        assert not left(rig)
        part.write([entry(payload("b"), run=1)], 1)
        staged = part.close()
    with pytest.raises(NotFound, match="staged part"):
        rig.store.commits.commit(request(1, [staged]))
    assert rig.contents() == []
    again = [payload("c"), payload("d")]
    assert not rig.store.commits.commit(request(1, [stage(rig.store, 1, again)])).repeated
    assert rig.contents() == again
    assert not left(rig)


def test_a_task_whose_part_was_swept_fails_when_it_opens_the_part_again(rig: LogRig) -> None:
    """A task with many parts closes their files, and opens them again."""
    part = PartWriter.to_file(rig.store.commits.open_part("q", 1), part_run(1))
    part.write([entry(payload("a"), run=1)], 1)
    part.rest()
    rig.store.commits.commit(request(2, [stage(rig.store, 2, [payload("next")])]))
    assert not left(rig), "the commit of a later batch deletes the parts of earlier batches"
    with pytest.raises((NotFound, FileNotFoundError)):
        part.write([entry(payload("b"), run=1)], 1)
    part.rest()
    assert rig.contents() == [payload("next")]


def test_a_slow_task_of_an_earlier_batch_commits_nothing(rig: LogRig) -> None:
    """The task was started twice. The other attempt was committed, and so was the next batch."""
    with PartWriter.to_file(rig.store.commits.open_part("q", 1), part_run(1)) as slow:
        slow.write([entry(payload("slow"), run=1)], 1)
        for batch in (1, 2):
            rig.store.commits.commit(request(batch, [stage(rig.store, batch, [payload(f"batch {batch}")])]))
        slow.write([entry(payload("slower"), run=1)], 1)
        staged = slow.close()
    with pytest.raises(Refused, match="batch 1 of query 'q' is below batch 2"):
        rig.store.commits.commit(request(1, [staged]))
    assert rig.contents() == [payload("batch 1"), payload("batch 2")]


def test_a_batch_that_runs_again_with_other_rows_is_stored_as_committed(rig: LogRig) -> None:
    first, other = [payload("a0"), payload("a1"), b"small"], [payload("b")]
    abandoned = stage(rig.store, 1, [payload("never")])
    parts = [stage(rig.store, 1, [row]) for row in first]
    assert not rig.store.commits.commit(request(1, parts)).repeated
    assert rig.store.commits.commit(request(1, [stage(rig.store, 1, other)])).repeated
    rig.crash()
    assert rig.store.commits.commit(request(1, [stage(rig.store, 1, other)])).repeated
    assert rig.contents() == first
    rig.store.commits.commit(request(2, [stage(rig.store, 2, other)]))
    assert rig.contents() == [*first, *other]
    assert not left(rig), f"{abandoned.part} is deleted, too"
