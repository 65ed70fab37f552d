"""Effects of the cursors' settings: what is refused, the file and size of a state, the time of its flush."""

from __future__ import annotations

import re
from typing import Any

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from tests.rigs.cursors import given
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives
from tests.rigs.entry import entry


class Acknowledged:
    """A log of so many entries, and a cursor that acknowledges some of them out of order."""

    def __init__(self, broker: DrivenBroker, entries: int = 20) -> None:
        self.broker, self.log = broker, broker.log()
        self.log.append([entry(b"x", rows=5) for _ in range(entries)]).result(60)
        self.ledger_id = self.log.snapshot.end.ledger_id
        broker.store.cursors.open(OpenCursor(self.log.name, "c", EARLIEST))

    def ack(self, *entries: int, rows: tuple[int, ...] = ()) -> Acknowledged:
        """Acknowledge entries, or a row of each."""
        places = [(self.ledger_id, number, *rows) for number in entries]
        self.broker.store.cursors.acknowledge(self.log.name, "c", given(*places))
        return self

    @property
    def held(self) -> Any:
        """Return the broker's state of the cursor."""
        return self.broker.store.acknowledgements._acks[self.log.name, "c"]

    @property
    def state(self) -> bytes:
        """The file of the cursor's ledger."""
        return (self.broker.store.path / "ledgers" / f"{self.held.ledger_id}.ledger").read_bytes()


def refused(broker: DrivenBroker, *entries: int, rows: tuple[int, ...] = ()) -> object:
    """The setting that a refusal names, and what it allows."""
    try:
        Acknowledged(broker, 400).ack(*entries, rows=rows)
    except Refused as wrong:
        return re.findall(r"setting '(\w+)' allows (\d+)", wrong.message)
    return []


def largest_entry(broker: DrivenBroker) -> object:
    cursor = Acknowledged(broker, 400).ack(*range(3, 399, 2), rows=(0,))
    return int(cursor.held._log._writer.index.lengths.max()) > 1200


def unflushed(broker: DrivenBroker) -> object:
    """Whether a second acknowledgement waits for the timer, and whether there is a timer."""
    cursor = Acknowledged(broker).ack(3).ack(5)
    table = broker.store.acknowledgements
    with broker.patch.context() as patch:
        patch.setattr(type(table), "_run", lambda _: None)
        table.start()
    return cursor.held.is_dirty, table._thread is not None


DRIVES: Drives = {
    "managedLedgerMaxUnackedRangesToPersist": [
        Drive(lambda b: refused(b, 3, 5, 7), [], {2: [("managedLedgerMaxUnackedRangesToPersist", "2")]})
    ],
    "persistentUnackedRangesMaxEntrySize": [Drive(largest_entry, True, {1024: False})],
    "managedLedgerDefaultMarkDeleteRateLimit": [Drive(unflushed, (False, False), {1: (True, True)})],
    "cursorInfoCompressionType": [Drive(lambda b: b"ZSTD" in Acknowledged(b).ack(3).state, False, {"ZSTD": True})],
}
