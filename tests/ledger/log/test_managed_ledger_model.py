"""Goal: the log is what was acknowledged, in order, after any fault of its broker. Method: a model over random
histories of appends, runs, crashes and take-overs with tiny segments.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_ledger.ledger.errors import Fenced, LedgerError
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry, parsed
from tests.rigs.log import NOW, contents
from tests.rigs.store import commit, create, open_store, stage


class LogMachine(RuleBasedStateMachine):
    """`sent` is what the log must hold. A broker that dies keeps its files open, as a stopped process would."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ledger-model-"))
        self.numbers = itertools.count()
        self.now = NOW
        self.batch = 0
        self.last: tuple[int, list[bytes], CommittedRun] | None = None
        self.sent: list[bytes] = []
        self.positions: dict[Position, bytes] = {}
        self.dead: list[Store] = []

    @initialize(entries=st.integers(1, 6))
    def begin(self, entries: int) -> None:
        self.store = open_store(self.directory / "store", clock=self.clock)
        create(self.store, entries=entries)

    def clock(self) -> int:
        return self.now

    def payloads(self, sizes: list[int]) -> list[bytes]:
        return [b"%d:" % next(self.numbers) + b"x" * size for size in sizes]

    @rule(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=8))
    def append_together(self, sizes: list[int]) -> None:
        payloads = self.payloads(sizes)
        first = self.store.ledger("log").append([entry(payload) for payload in payloads]).result()
        self.remember(payloads, first)

    @rule(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=8))
    def append_one_by_one(self, sizes: list[int]) -> None:
        payloads = self.payloads(sizes)
        log = self.store.ledger("log")
        futures = [log.append([entry(payload)]) for payload in payloads]
        for payload, future in zip(payloads, futures, strict=True):
            self.remember([payload], future.result())

    @rule(sizes=st.lists(st.integers(0, 200), max_size=8))
    def commit_batch(self, sizes: list[int]) -> None:
        payloads = self.payloads(sizes)
        self.batch += 1
        done = commit(self.store, self.batch, payloads, self.batch)
        assert (done.repeated, done.entries, done.rows) == (False, len(payloads), len(payloads))
        assert done.end == Position(done.first.ledger_id, done.first.entry_id + len(payloads) + 1)
        self.remember(payloads, done.first)
        self.last = (self.batch, payloads, done)

    @precondition(lambda self: self.last is not None)
    @rule()
    def commit_the_same_again(self) -> None:
        assert self.last is not None
        batch, payloads, done = self.last
        again = commit(self.store, batch, payloads, batch)
        assert again == CommittedRun(True, done.first, done.end, done.entries, done.rows)

    @rule(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4))
    def commit_of_a_part_that_changed(self, sizes: list[int]) -> None:
        part = stage(self.store, "other", 0, self.payloads(sizes), 9)
        path = self.store.path / "staging" / part.part
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(LedgerError, match="CRC32C"):
            self.store.commits.commit(CommitRun("log", "other", 0, 7, 9, [part]))

    @rule(broken=st.sampled_from([b"", b"junk", entry(b"x")[:-1], entry(b"x", run=3), entry(b"x" * 400)]))
    def refused_changes_nothing(self, broken: bytes) -> None:
        with pytest.raises(LedgerError):
            self.store.ledger("log").append([entry(b"good"), broken]).result()

    @rule(milliseconds=st.integers(-1000, 1000))
    def time_goes_by(self, milliseconds: int) -> None:
        self.now += milliseconds

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.directory / "store", clock=self.clock)

    @rule(
        unfinished=st.lists(st.integers(0, 200), max_size=3),
        run=st.booleans(),
        torn=st.booleans(),
        gone=st.booleans(),
    )
    def die_in_mid_append(self, unfinished: list[int], run: bool, torn: bool, gone: bool) -> None:
        """Written and never acknowledged: whole entries are kept or cut as one, half ones and open runs are cut.

        A broker that is gone holds its files no more; one that is only stopped does, and recovery must work on copies.
        """
        log = self.store.ledger("log")
        payloads = self.payloads(unfinished)
        entries = [
            log._check_size(entry(payload, run=99 if run else 0), 1, log._entry_bytes_max) for payload in payloads
        ]
        open_ledger = log._writer._open
        if open_ledger is not None:
            log._writer._write_stamped(open_ledger, entries)
            writer = open_ledger
            os.pwrite(writer._fd, b"\x00\x00\x01\x00torn" * 5, writer.end_offset) if torn else None
            if not run:
                self.sent += payloads
            if gone:
                open_ledger.close()
        self.dead.append(self.store)
        self.store = open_store(self.directory / "store", take_over=True, clock=self.clock)

    @precondition(lambda self: bool(self.dead))
    @rule()
    def the_dead_are_fenced(self) -> None:
        before = contents(self.store.ledger("log"))
        for broker in self.dead:
            log = broker._opened.get("public/default/persistent/log")
            if log is not None:
                with pytest.raises(Fenced, match=r"has epoch \d+, this broker has \d+"):
                    log.append([entry(b"from the grave")]).result()
        assert contents(self.store.ledger("log")) == before

    @precondition(lambda self: bool(self.dead))
    @rule()
    def the_dead_close(self) -> None:
        while self.dead:
            self.dead.pop().close()

    def remember(self, payloads: list[bytes], first: Position) -> None:
        self.sent += payloads
        self.positions.update({Position(first.ledger_id, first.entry_id + i): p for i, p in enumerate(payloads)})

    @invariant()
    def the_log_is_what_was_sent(self) -> None:
        if not hasattr(self, "store"):
            return
        log = self.store.ledger("log")
        assert contents(log) == self.sent
        end = log.end(EARLIEST)
        assert end.rows_since == len(self.sent) == log.describe().rows
        stamps = [t for s in log.snapshot.segments for t in s.index().timestamps[: s.entries].tolist()]
        assert stamps == sorted(stamps), "broker timestamps went back"

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.positions_hold()
            self.store.close()
        self.the_dead_close()
        shutil.rmtree(self.directory)

    def positions_hold(self) -> None:
        log = self.store.ledger("log")
        for position, payload in self.positions.items():
            (block,) = log.blocks(PositionRange(position, position.next()), 1)
            ((_, found),) = parsed(block)
            assert bytes(found.payload) == payload


LogMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLogModel = LogMachine.TestCase


@pytest.mark.slow
class TestLogModelLong(LogMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(
        max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
