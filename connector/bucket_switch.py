"""Switch between bucket and broker in one Python process.

Tasks that run in this process read and write a bucket directly if they can. After an error of the bucket, they use the
broker for a while.

Rules
- The switch warns once, with the reason. Later errors are logged with level INFO.
- After `OFF_MS` the next task tries the bucket again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.errors import LedgerError

CONNECT_MS = 3_000
"""Time limit for a connection to the bucket. It is short, because a task can use the broker instead."""
OFF_MS = 300_000
"""The time after an error in which the tasks of a process do not try the bucket."""
_log = logging.getLogger(__name__)


class BucketSwitch:
    """Switch for one bucket. If it is on, the tasks of this process use the bucket. Any thread may call any method."""

    def __init__(self, effect: str, clock: Clock = monotonic_ms) -> None:
        """`effect` is the text of the warning: it says what the tasks do instead."""
        self._effect = effect
        self._clock = clock
        self._off_until_ms: int | None = None
        self._tried: set[object] = set()
        self._has_warned = False
        self._lock = threading.Lock()

    def is_on(self) -> bool:
        with self._lock:
            return self._off_until_ms is None or self._clock() >= self._off_until_ms

    def turn_off(self, error: LedgerError) -> None:
        """Use the broker for a while. Warns at the first call."""
        with self._lock:
            self._off_until_ms = self._clock() + OFF_MS
            self._tried.clear()
            level = logging.INFO if self._has_warned else logging.WARNING
            self._has_warned = True
        _log.log(level, "%s: %s", self._effect, error)

    def try_once(self, key: object, trial: Callable[[], object]) -> bool:
        """Return whether the bucket can be used. Calls `trial` if no trial with this `key` has succeeded yet."""
        if key in self._tried:
            return True
        try:
            trial()
        except LedgerError as error:
            self.turn_off(error)
            return False
        with self._lock:
            self._tried.add(key)
            self._off_until_ms = None
        return True
