"""Model of brokers, a network and a bucket, whose decisions are the real functions of `ledger.wal`.

A state is an immutable value. `steps` yields every state that one step leads to. In a step, a broker sends a put, looks
(reads the manifest before it acknowledges), deletes old objects, crashes or takes over. Or the network delivers a
request now, late or twice, with its answer or without.

`Decisions` has the brokers' decisions as functions. A test replaces a decision by a wrong function, and checks that the
model finds the loss.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Fenced
from pyspark_ledger.ledger.wal import fence
from pyspark_ledger.ledger.wal.log_object import Header, LogObject, WalPart
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.scan import LogScan
from pyspark_ledger.ledger.wal.slots import Slots

STORE = uuid.UUID(int=1)
Entry = tuple[str, int]  # the broker, and the number of the object
IDLE, SCAN, FOUND, CLAIM, CLAIMED, SERVE, DEAD = "idle", "scan", "found", "claim", "claimed", "serve", "dead"


class Object(NamedTuple):
    """Object of the log. `entry` is None in a claim."""

    number: int
    broker: str
    epoch: int
    entry: Entry | None

    def header(self) -> Header:
        return Header(STORE, self.epoch, self.number, nonce_of(self.broker), 0, self.entry is None)


class Snapshot(NamedTuple):
    """Snapshot object: the epoch in its name, the number of the first log object after it, and its entries."""

    epoch: int
    first: int
    entries: tuple[Entry, ...]


class Look(NamedTuple):
    """Look of a broker: the numbers that it may acknowledge, and the manifest that it has read (None: not yet)."""

    stored: frozenset[int]
    manifest: StoreManifest | None = None


class Broker(NamedTuple):
    """State of a broker. `view` has the entries that it serves, `acknowledged` the entries that it has acknowledged.

    `named` is the snapshot that the manifest names, as far as the broker knows. `unnamed` is its newer snapshot.
    """

    name: str
    phase: str
    epoch: int = 0
    puts: int = 0
    collections: int = 0
    crashes: int = 0
    window: int = 1
    seen: StoreManifest | None = None
    lowest: int = 0
    next: int = 0
    stored: frozenset[int] = frozenset()
    look: Look | None = None
    scan: tuple[int, int] = (0, 0)
    claims: tuple[int, ...] = ()
    view: tuple[Entry, ...] = ()
    acknowledged: tuple[Entry, ...] = ()
    to_delete: tuple[int, ...] = ()
    sweeps: int = 0
    to_sweep: tuple[Snapshot, ...] = ()
    named: Snapshot | None = None
    unnamed: Snapshot | None = None


class State(NamedTuple):
    """Bucket, network and brokers. `named` is the snapshot that the manifest names."""

    log: frozenset[Object]
    manifest: StoreManifest
    snapshots: frozenset[Snapshot]
    named: Snapshot | None
    network: frozenset[tuple[str, Object]]  # requests in flight, with their broker
    ghosts: int
    brokers: tuple[Broker, ...]
    problem: str = ""

    def at(self, number: int) -> Object | None:
        return next((found for found in self.log if found.number == number), None)


@dataclass(frozen=True)
class Decisions:
    """Decisions of the brokers: the real ones, unless a test replaces one."""

    slot_content: Callable[[Header | None, Header], fence.Slot] = fence.slot_content
    claimed_slots: Callable[[int, int], range] = fence.claimed_slots
    taken_over: Callable[[StoreManifest, uuid.UUID, int], StoreManifest] = fence.taken_over
    is_void: Callable[[int, int], bool] = fence.is_void
    may_sweep: Callable[[int, int, int, int], bool] = fence.may_sweep
    looks: bool = True
    """False: a broker acknowledges without a look."""
    looks_late: bool = True
    """False: a look acknowledges everything that is stored when it ends."""
    deletes_after_manifest: bool = True
    in_order: bool = True
    """False: a number may be acknowledged before the numbers below it."""
    checks_before: tuple[str, ...] = (FOUND, CLAIMED)
    """A taker reads the manifest again after it found a free slot, and after its last claim."""


@dataclass
class Model:
    """Exploration of all states. `windows` are the windows of the brokers by name."""

    decisions: Decisions = field(default_factory=Decisions)
    states: int = 0

    def explore(self, first: State, most: int = 1_500_000) -> str:
        """Try every order of steps. Return the first problem that is found; empty if there is none."""
        seen, waiting = {first}, [first]
        while waiting:
            state = waiting.pop()
            problem = state.problem or self.check(state)
            if problem:
                self.states = len(seen)
                return problem
            for after in self.steps(state):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
            assert len(seen) < most, f"more than {most} states"
        self.states = len(seen)
        return ""

    # Invariants.

    def read(self, state: State) -> list[Entry]:
        """Return the entries that a reader finds now: the snapshot, then the log."""
        scan = LogScan(state.manifest.first)
        found = list(state.named.entries if state.named is not None else ())
        while (there := state.at(scan.next)) is not None:
            found += self.feed(scan, there)
        return found

    def feed(self, scan: LogScan, found: Object) -> list[Entry]:
        if self.decisions.is_void is not fence.is_void and not self.decisions.is_void(found.epoch, scan.epoch):
            scan.epoch = min(scan.epoch, found.epoch)
        parts = [] if found.entry is None else [(WalPart("records", 0, 0, last=True), memoryview(b""))]
        applied = list(scan.feed(LogObject(found.header(), parts), "the log"))
        return [found.entry] if applied and found.entry is not None else []

    def check(self, state: State) -> str:
        if state.named is not None and state.named not in state.snapshots:
            return f"the manifest names a deleted snapshot: {state.named}"
        found = self.read(state)
        if len(set(found)) != len(found):
            return f"twice in the log: {found}"
        for broker in state.brokers:
            missing = [entry for entry in broker.acknowledged if entry not in found]
            if missing:
                return f"acknowledged by {broker.name} and lost: {missing}, found {found}"
            places = [found.index(entry) for entry in broker.acknowledged]
            if places != sorted(places):
                return f"out of order: {found}"
            is_owner = broker.phase == SERVE and broker.epoch == state.manifest.epoch
            if is_owner and list(broker.view) != found[: len(broker.view)]:
                return f"{broker.name} serves {broker.view}, the log has {found}"
        return ""

    # Steps.

    def steps(self, state: State) -> Iterator[State]:
        for index, broker in enumerate(state.brokers):
            if broker.phase == DEAD:
                continue
            if broker.crashes:
                yield put_broker(state, index, broker._replace(phase=DEAD, crashes=0))
            yield from self._step(broker.phase)(state, index, broker)
        for request in state.network:
            yield from self._deliver(state, *request)

    def _step(self, phase: str) -> Callable[[State, int, Broker], Iterator[State]]:
        steps = {IDLE: self._take_over, SCAN: self._scan, CLAIM: self._claim, SERVE: self._serve}
        return steps.get(phase, self._check_epoch)

    def _take_over(self, state: State, index: int, broker: Broker) -> Iterator[State]:
        if broker.seen is None or broker.seen != state.manifest:
            view = state.named.entries if state.named is not None else ()
            yield put_broker(state, index, broker._replace(seen=state.manifest, named=state.named, view=view))
        else:
            after = self.decisions.taken_over(state.manifest, nonce_of(broker.name), broker.window)
            taken = broker._replace(phase=SCAN, epoch=after.epoch, seen=after, scan=(after.first, 0))
            yield put_broker(state._replace(manifest=after), index, taken)

    def _scan(self, state: State, index: int, broker: Broker) -> Iterator[State]:
        number, epoch = broker.scan
        there = state.at(number)
        if there is None:
            yield put_broker(state, index, broker._replace(phase=FOUND))
            return
        scan = LogScan(number, epoch)
        view = (*broker.view, *self.feed(scan, there))
        yield put_broker(state, index, broker._replace(scan=(scan.next, scan.epoch), view=view))

    def _check_epoch(self, state: State, index: int, broker: Broker) -> Iterator[State]:
        """Read the manifest, before the first claim and before the first put of a batch."""
        after = CLAIM if broker.phase == FOUND else SERVE
        try:
            if broker.phase in self.decisions.checks_before:
                fence.require_epoch(state.manifest, broker.epoch, "the store")
        except Fenced:
            after = DEAD
        yield put_broker(state, index, broker._replace(phase=after))

    def _claim(self, state: State, index: int, broker: Broker) -> Iterator[State]:
        """Send the claim of the next slot. `claims` are the slots still to claim after the first one."""
        assert broker.seen is not None
        number = broker.claims[0] if broker.claims else broker.scan[0]
        request = (broker.name, Object(number, broker.name, broker.epoch, None))
        if request not in state.network:
            yield state._replace(network=state.network | {request})

    def _serve(self, state: State, index: int, broker: Broker) -> Iterator[State]:
        slots = slots_of(broker)
        if broker.puts and slots.is_open:
            number = slots.take()
            sent = Object(number, broker.name, broker.epoch, (broker.name, number))
            after = put_broker(state, index, broker._replace(puts=broker.puts - 1, next=slots.next))
            yield after._replace(network=after.network | {(broker.name, sent)})
        yield from self._look(state, index, broker, slots)
        yield from self._collect(state, index, broker)
        yield from self._sweep(state, index, broker)

    def _sweep(self, state: State, index: int, broker: Broker) -> Iterator[State]:
        """List the snapshots that the manifest does not name, then delete one after another. Any step may come late."""
        if broker.to_sweep:
            left = state._replace(snapshots=state.snapshots - {broker.to_sweep[0]})
            yield put_broker(left, index, broker._replace(to_sweep=broker.to_sweep[1:]))
        elif broker.sweeps:
            found = sorted(state.snapshots - {broker.named})
            gone = tuple(snapshot for snapshot in found if self.decisions.may_sweep(snapshot.epoch, broker.epoch, 1, 0))
            yield put_broker(state, index, broker._replace(sweeps=broker.sweeps - 1, to_sweep=gone))

    def _look(self, state: State, index: int, broker: Broker, slots: Slots) -> Iterator[State]:
        stored = slots.checkable() if self.decisions.in_order else frozenset(broker.stored)
        if broker.look is None:
            if not stored:
                return
            if not self.decisions.looks:
                yield self._looked(state, index, broker, stored, state.manifest)
                return
            yield put_broker(state, index, broker._replace(look=Look(stored)))
        elif broker.look.manifest is None:
            yield put_broker(state, index, broker._replace(look=Look(broker.look.stored, state.manifest)))
        else:
            known = broker.look.stored if self.decisions.looks_late else broker.stored
            yield self._looked(state, index, broker._replace(look=None), known, broker.look.manifest)

    def _looked(
        self, state: State, index: int, broker: Broker, stored: frozenset[int], manifest: StoreManifest
    ) -> State:
        slots = slots_of(broker)
        try:
            if self.decisions.looks:
                done = list(slots.acknowledge(stored, manifest, "the store"))
            else:
                done = list(slots.acknowledge(stored, manifest_of(broker.epoch), "the store"))
        except Fenced:
            return put_broker(state, index, broker._replace(phase=DEAD))
        if not self.decisions.in_order:
            done = sorted(stored)
        entries = tuple((broker.name, number) for number in done)
        return put_broker(
            state,
            index,
            broker._replace(
                lowest=slots.lowest,
                stored=frozenset(broker.stored) - set(done),
                acknowledged=broker.acknowledged + entries,
                view=broker.view + entries,
            ),
        )

    def _collect(self, state: State, index: int, broker: Broker) -> Iterator[State]:
        if broker.to_delete:
            gone = state.at(broker.to_delete[0])
            log = state.log if gone is None else state.log - {gone}
            yield put_broker(state._replace(log=log), index, broker._replace(to_delete=broker.to_delete[1:]))
            return
        assert broker.seen is not None
        first = fence.first_live(broker.lowest, [], None, broker.lowest)
        if not broker.collections or first == broker.seen.first:
            return
        if broker.unnamed is None:
            put = Snapshot(broker.epoch, first, broker.view)
            more = state._replace(snapshots=state.snapshots | {put})
            yield put_broker(more, index, broker._replace(unnamed=put))
            return
        named, first = broker.unnamed, broker.unnamed.first
        after = changed(broker.seen, revision=broker.seen.revision + 1, first=first)
        left = broker._replace(collections=broker.collections - 1, named=named, unnamed=None)
        old = tuple(range(broker.seen.first, first))
        if not self.decisions.deletes_after_manifest:
            yield put_broker(state, index, left._replace(to_delete=old))
        elif state.manifest == broker.seen:
            kept = state._replace(manifest=after, named=named)
            yield put_broker(kept, index, left._replace(seen=after, to_delete=old))
        else:
            yield put_broker(state, index, broker._replace(phase=DEAD))

    def _deliver(self, state: State, name: str, sent: Object) -> Iterator[State]:
        there = state.at(sent.number)
        applied = state if there is not None else state._replace(log=state.log | {sent})
        yield applied  # the answer is lost, and the broker repeats the request
        answered = applied._replace(network=applied.network - {(name, sent)})
        yield self._answer(answered, name, sent, there)
        if state.ghosts:
            yield self._answer(applied._replace(ghosts=state.ghosts - 1), name, sent, there)

    def _answer(self, state: State, name: str, sent: Object, there: Object | None) -> State:
        """Tell the broker the result of its put. `there` is the object that was in the slot before."""
        index = next(i for i, broker in enumerate(state.brokers) if broker.name == name)
        broker = state.brokers[index]
        slot = fence.Slot.MINE
        if there is not None:
            slot = self.decisions.slot_content(there.header(), sent.header())
        if broker.phase == SERVE and sent.entry is not None:
            if sent.number < broker.lowest or sent.number in broker.stored:
                return state
            if slot is fence.Slot.LOST:
                fenced = broker.epoch < state.manifest.epoch
                problem = "" if fenced else f"{name} lost a slot that is its own"
                return put_broker(state, index, broker._replace(phase=DEAD))._replace(problem=problem)
            return put_broker(state, index, broker._replace(stored=broker.stored | {sent.number}))
        if broker.phase == CLAIM and sent.entry is None:
            return self._claimed(state, index, broker, sent.number, slot)
        return state

    def _claimed(self, state: State, index: int, broker: Broker, number: int, slot: fence.Slot) -> State:
        assert broker.seen is not None
        if not broker.claims:
            if number != broker.scan[0]:
                return state
            if slot is fence.Slot.LOST:
                return put_broker(state, index, broker._replace(phase=SCAN))
            slots = self.decisions.claimed_slots(number, broker.seen.window)
            claims = tuple(slots[1:])
        elif number != broker.claims[0]:
            return state
        else:
            slots, claims = range(number, number + 1), broker.claims[1:]
        if claims:
            return put_broker(state, index, broker._replace(claims=claims))
        claimed = broker._replace(phase=CLAIMED, claims=(), lowest=slots.stop, next=slots.stop)
        return put_broker(state, index, claimed)


def put_broker(state: State, index: int, broker: Broker) -> State:
    brokers = (*state.brokers[:index], broker, *state.brokers[index + 1 :])
    return state._replace(brokers=brokers)


def slots_of(broker: Broker) -> Slots:
    assert broker.seen is not None
    slots = Slots(broker.lowest, broker.epoch, broker.seen.window)
    slots.next = broker.next
    for number in broker.stored:
        slots.store(number)
    return slots


def nonce_of(name: str) -> uuid.UUID:
    return uuid.UUID(bytes=name.encode().ljust(16, b"-"))


def manifest_of(epoch: int, window: int = 1) -> StoreManifest:
    return StoreManifest(str(STORE), str(nonce_of("old")), epoch=epoch, window=window)


def changed(manifest: StoreManifest, **values: int) -> StoreManifest:
    known = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    return StoreManifest(**{**known, **values})


def first_state(
    window: int, *takers: Broker, puts: int = 2, collections: int = 0, ghosts: int = 0, sweeps: int = 0
) -> State:
    """Return the state of a store with a serving broker `old` of epoch 1, and brokers that may take over."""
    manifest = manifest_of(1, window)
    old = Broker("old", SERVE, 1, puts=puts, collections=collections, seen=manifest, window=window, sweeps=sweeps)
    return State(frozenset(), manifest, frozenset(), None, frozenset(), ghosts, (old, *takers))
