"""Throttling of the leading reader: it waits for readers close behind it, so that they share one read of storage.

Suppose that several readers read the same backlog. As long as the cache can keep the entries between them, the first
reader reads from storage, and the others read from the cache. If the first reader is too far ahead, each later reader
reads from storage again. So the first reader waits for a limited time if the others can then catch up.

Rules
- The first reader waits only before a read of storage. The cache keeps the last `span` bytes before the end of this
  read. A later reader shares the read if it is within these bytes.
- The first reader waits for a later reader that is not within these bytes yet, but can reach them soon at its present
  speed. Soon means: within `_WORTH` times the remaining waiting time of the first reader.
- The first reader does not wait for a reader that has not moved in the last seconds. Nor does it wait for a reader
  whose own speed is below `_NEARLY` times the first reader's own speed.
- The *own speed* of a reader is the speed of its last batches, without its waits. A *batch* is the range that a reader
  announces in one request, not a batch of Spark. Several batches count, because other readers can halve the speed of
  a single batch.
- The total waiting time of a reader is at most a share (`part`) of its reading time. The reading time is the time from
  the reader's start until now, without its waits. To this time, an estimate for the rest of the log is added.
- The estimate assumes that the reader reads the rest of the log at its own speed.

The functions read no clock: the time and the positions are arguments. In this module, a position is a number of bytes:
the size of all earlier entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_SEEN_MS = 4_000
_ASK_LEAST_MS, _ASK_MOST_MS = 20, 400
_BATCHES_LEAST, _BATCHES_MOST = 2, 6
_NEARLY, _WORTH = 0.6, 4.0


@dataclass(slots=True)
class ReaderThrottle:
    """Progress of one reader through one log: its start, its total waiting time, its positions in the last seconds."""

    began_ms: int
    waited_ms: int = 0
    asked_ms: int | None = None
    """The time since which the reader waits, or None."""
    seen: deque[tuple[int, int]] = field(default_factory=deque)
    _batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_BATCHES_MOST + 1))
    """The start of each of its last batches: a time in milliseconds, less all earlier waits, and a position."""

    def at(self, now_ms: int, place: int) -> None:
        """Record the reader's position."""
        while self.seen and (now_ms - self.seen[0][0] > _SEEN_MS or place < self.seen[-1][1]):
            self.seen.popleft()
        if not self.seen or self.seen[-1][1] != place:
            self.seen.append((now_ms, place))

    def begins_batch(self, now_ms: int, place: int) -> None:
        """Record that the reader starts a batch at `place`. Its waiting ends."""
        self.waits(now_ms, 0)
        if self._batches and place < self._batches[-1][1]:
            self._batches.clear()
        if not self._batches or place > self._batches[-1][1]:
            self._batches.append((now_ms - self.waited_ms, place))

    def waits(self, now_ms: int, wait_ms: int) -> None:
        """Record that the reader waits from now on. If `wait_ms` is 0, record that its waiting has ended."""
        if self.asked_ms is not None:
            self.waited_ms += now_ms - self.asked_ms
        self.asked_ms = now_ms if wait_ms else None

    def speed(self, now_ms: int) -> float:
        """Return the speed in the last seconds, in bytes per millisecond. 0 means that the reader has not moved."""
        if not self.seen:
            return 0.0
        since, place = self.seen[0]
        passed = now_ms - since
        return (self.seen[-1][1] - place) / passed if 0 < passed <= 2 * _SEEN_MS else 0.0

    def own_speed(self) -> float:
        """Return the speed of its last batches, without waits, in bytes per millisecond. 0 means too few batches."""
        if len(self._batches) <= _BATCHES_LEAST:
            return 0.0
        (since, begin), (until, end) = self._batches[0], self._batches[-1]
        return (end - begin) / max(until - since, 1)

    def may_wait_ms(self, now_ms: int, left: int, part: float) -> float:
        """Return the reader's remaining waiting time if it has `left` bytes to read."""
        speed = self.own_speed()
        if not speed:
            return 0.0
        waited = self.waited_ms + (0 if self.asked_ms is None else now_ms - self.asked_ms)
        return part * (now_ms - self.began_ms - waited + left / speed) - waited


@dataclass(frozen=True, slots=True)
class LaggingReader:
    """Reader behind the leading reader: its position, its speed in the last seconds, and its own speed (0: unknown)."""

    place: int
    speed: float
    own_speed: float = 0.0


def wait_ms(end: int, followers: Sequence[LaggingReader], span: int, may_wait: float, own_speed: float) -> int:
    """Return how many milliseconds a reader waits before it reads up to `end`; 0 means no wait.

    The cache keeps the `span` bytes before `end`. The reader waits at most `may_wait` milliseconds.
    After a wait, the reader asks again.
    """
    needed = [
        (end - follower.place - span) / follower.speed
        for follower in followers
        if follower.speed > 0 and end - follower.place > span and follower.own_speed >= _NEARLY * own_speed
    ]
    reachable = [time_ms for time_ms in needed if time_ms <= _WORTH * may_wait]
    if not reachable or may_wait < _ASK_LEAST_MS:
        return 0
    return int(min(max(*reachable, _ASK_LEAST_MS), _ASK_MOST_MS, may_wait))
