"""Goal: after any order of appends, acknowledgements, resets, trims, rollovers and crashes, a log holds exactly the
entries that a reader may need. Method: a model over random histories of a store with tiny segments, its clock moved
by hand.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.cursors import ResetCursor
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.log import MINUTE, LogRig


class LifeMachine(RuleBasedStateMachine):
    """`entries` is all that was ever appended; the first `gone` were trimmed, the first `done` acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ledger-life-"))
        self.entries: list[tuple[Position, bytes]] = []
        self.gone = self.done = 0
        self.dead: list[Store] = []

    @initialize(size=st.integers(1, 4))
    def begin(self, size: int) -> None:
        self.size = size
        self.rig = LogRig(self.directory / "store")
        self.rig.log(entries=size)
        self.rig.policy(managedLedgerMaxLedgerRolloverTimeMinutes=10, retentionTimeInMinutes=0, retentionSizeInMB=0)
        self.rig.cursor("reader")

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        payloads = [b"%d" % (len(self.entries) + number) for number in range(count)]
        positions = self.rig.append(*payloads, entries=self.size)
        self.entries += zip(positions, payloads, strict=True)

    @precondition(lambda self: self.done < len(self.entries))
    @rule(share=st.floats(0, 1))
    def acknowledge(self, share: float) -> None:
        self.done += max(1, int(share * (len(self.entries) - self.done)))
        self.rig.acknowledge("reader", self.entries[self.done - 1][0].next())

    @precondition(lambda self: self.done > self.gone)
    @rule(share=st.floats(0, 1))
    def put_back(self, share: float) -> None:
        self.done = self.gone + int(share * (self.done - self.gone))
        target = self.entries[self.done][0] if self.done < len(self.entries) else self.entries[-1][0].next()
        self.rig.store.cursors.reset(ResetCursor("log", "reader", target))

    @precondition(lambda self: self.gone > 0)
    @rule(share=st.floats(0, 1))
    def what_is_gone_is_named(self, share: float) -> None:
        position = self.entries[min(int(share * self.gone), self.gone - 1)][0]
        with pytest.raises(Refused, match="were trimmed by its retention"):
            self.rig.store.cursors.reset(ResetCursor("log", "reader", position))
        with pytest.raises(DataLoss, match="were trimmed by its retention"):
            self.rig.store.ledger("log").blocks(PositionRange(position, position.next()), 100)

    @rule(minutes=st.integers(-5, 20))
    def a_round_is_made(self, minutes: int) -> None:
        self.rig.now += minutes * MINUTE
        self.rig.store.upkeep.round()
        self.count_what_went()

    @rule()
    def trim(self) -> None:
        self.rig.store.ledger("log").trim()
        self.count_what_went()

    @rule()
    def reopen(self) -> None:
        self.rig.reopen()

    @rule()
    def crash(self) -> None:
        self.dead.append(self.rig.crash())

    def count_what_went(self) -> None:
        """All sealed ledgers that are read to their end are gone, and nothing else is."""
        snapshot = self.rig.store.ledger("log").snapshot
        held = {segment.ledger_id for segment in snapshot.segments}
        gone = sum(position.ledger_id not in held for position, _ in self.entries)
        assert self.gone <= gone <= self.done, "what was not acknowledged must stay"
        self.gone = gone
        oldest = snapshot.segments[0] if snapshot.segments else None
        if oldest is not None and oldest.close_ms:
            assert self.gone + oldest.entries > self.done, "a ledger stays that nobody needs"

    @invariant()
    def the_log_holds_what_is_left(self) -> None:
        if not hasattr(self, "rig"):
            return
        log = self.rig.store.ledger("log")
        assert self.rig.contents() == [payload for _, payload in self.entries[self.gone :]]
        assert log.snapshot.rows == len(self.entries)
        assert self.rig.left_of("reader").backlog_entries == len(self.entries) - self.done
        if self.done > self.gone:
            start = self.entries[self.done - 1][0].next()
            left = [payload for _, payload in self.entries[self.done :]]
            assert self.rig.contents(start=start, end=LATEST) == left

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.store.close()
        for store in self.dead:
            store.close()
        shutil.rmtree(self.directory)


LifeMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLifeModel = pytest.mark.thorough(LifeMachine.TestCase)
