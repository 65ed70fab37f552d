"""Messages with which a client waits for new entries of many ledgers at once, and the message of an error.

    client ── WaitEnds(watch, turn, [(ledger, incarnation, end), …]) ──▶ broker
           ◀── MovedEnds, as soon as one of these ledgers has moved, or after `wait_ms` ──

Rules
- A client has one `watch`, and so one waiting call, for all its readers. It numbers its calls by `turn`.
- A call with a higher turn of the same watch ends the earlier call at once. So a client adds a ledger while it waits. A
  call with a lower turn, which the network has delayed, returns at once.
- A ledger has *moved* if its end is after the known end, or if it is terminated. It also has if it was deleted or
  created again, or has another number of partitions.
- A reply without ledgers has no news. The error of one ledger, such as NotFound, ends the wait of this ledger only.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.errors import LedgerError, error_for
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.protocol.request import READ, Request
from pyspark_ledger.ledger.settings.setting import NotNegative

ENDS_MAX = 100_000


class WireError(msgspec.Struct, frozen=True):
    """Error of the broker in a message. `kind` names a narrower class of the code."""

    code: str
    message: str
    hint: str = ""
    kind: str = ""

    @classmethod
    def of(cls, error: LedgerError) -> WireError:
        return cls(error.code, error.message, error.hint, error.kind)

    def error(self) -> LedgerError:
        return error_for(self.code, self.message, self.hint, self.kind)


class KnownEnd(msgspec.Struct, frozen=True):
    """State of a ledger that a client knows. A partitioned ledger has `partitions`, and no end of its own.

    An *incarnation* is the id of one creation of the ledger: it changes if the ledger is deleted and created again.
    """

    name: Name
    incarnation: Name
    end: Position
    partitions: NotNegative = 0

    def moved(self, incarnation: str, end: Position, *, terminated: bool) -> MovedEnd | None:
        """Return the state of the ledger if it has moved to this end, or None."""
        if end <= self.end and incarnation == self.incarnation and not terminated:
            return None
        return MovedEnd(self.name, incarnation, end, terminated=terminated)


class MovedEnd(msgspec.Struct, frozen=True):
    """State of a ledger that has moved, or the error that prevents its reading. `name` is as in the request."""

    name: str
    incarnation: str = ""
    end: Position = Position(-1, -1)
    partitions: int = 0
    terminated: bool = False
    error: WireError | None = None


class MovedEnds(msgspec.Struct, frozen=True):
    """Ledgers that have moved."""

    moved: list[MovedEnd] = []


class WaitEnds(Request[MovedEnds], frozen=True, action="end.wait", right=READ, ledgers=("known.name",), changes=False):
    """Request that waits up to `wait_ms` until one of the ledgers has moved."""

    watch: Name
    turn: NotNegative
    wait_ms: NotNegative
    known: Annotated[list[KnownEnd], msgspec.Meta(max_length=ENDS_MAX)]
