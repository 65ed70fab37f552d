"""Throttling of the leading reader: it waits for readers close behind it so that they share one storage read.

Readers that are less than the cache apart share what the first of them reads. If a reader runs ahead of that, storage
is read again for each reader behind. So the leading reader waits if that helps, for a bounded time.

Rules
- Only a reader that would read from storage waits, and only for certain readers behind it. They must be behind the end
  of its next read by more than `span` bytes, which the cache holds. They must be able to come near enough in the rest
  of its waiting time.
- A reader waits at most `part` of the time of its catch-up. That time is the elapsed time without waiting, and the rest
  at its own speed: that of its last batches, without waiting. A single batch says little: beside other readers the
  next may take twice as long.
- No reader waits for a stalled one, by its speed over the last seconds, nor for a slower one.

Pure: the clock and the positions are arguments. Bytes are of entries; positions are numbers of bytes before them.
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
    """Progress of one reader through one log: its start, its total waiting time, its positions of the last seconds."""

    began_ms: int
    waited_ms: int = 0
    asked_ms: int | None = None
    """When it was last told to wait."""
    seen: deque[tuple[int, int]] = field(default_factory=deque)
    _batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_BATCHES_MOST + 1))
    """When its last batches began, in milliseconds without waiting, and where."""

    def at(self, now_ms: int, place: int) -> None:
        while self.seen and (now_ms - self.seen[0][0] > _SEEN_MS or place < self.seen[-1][1]):
            self.seen.popleft()
        if not self.seen or self.seen[-1][1] != place:
            self.seen.append((now_ms, place))

    def begins_batch(self, now_ms: int, place: int) -> None:
        """Record a request for the next batch, which ends the waiting for the one before."""
        self.waits(now_ms, 0)
        if self._batches and place < self._batches[-1][1]:
            self._batches.clear()
        if not self._batches or place > self._batches[-1][1]:
            self._batches.append((now_ms - self.waited_ms, place))

    def waits(self, now_ms: int, wait_ms: int) -> None:
        """Record that the reader waits; the time since the last record counts as waited."""
        if self.asked_ms is not None:
            self.waited_ms += now_ms - self.asked_ms
        self.asked_ms = now_ms if wait_ms else None

    def speed(self, now_ms: int) -> float:
        """Return bytes a millisecond over the last seconds; 0 for a stalled reader."""
        if not self.seen:
            return 0.0
        since, place = self.seen[0]
        passed = now_ms - since
        return (self.seen[-1][1] - place) / passed if 0 < passed <= 2 * _SEEN_MS else 0.0

    def own_speed(self) -> float:
        """Return bytes a millisecond of its last batches, without waiting; 0 at the start."""
        if len(self._batches) <= _BATCHES_LEAST:
            return 0.0
        (since, begin), (until, end) = self._batches[0], self._batches[-1]
        return (end - begin) / max(until - since, 1)

    def may_wait_ms(self, now_ms: int, left: int, part: float) -> float:
        """Return the rest of its waiting time, with `left` bytes to read."""
        speed = self.own_speed()
        if not speed:
            return 0.0
        waited = self.waited_ms + (0 if self.asked_ms is None else now_ms - self.asked_ms)
        return part * (now_ms - self.began_ms - waited + left / speed) - waited


@dataclass(frozen=True, slots=True)
class LaggingReader:
    """Reader behind: its position, its speed over the last seconds, and its own speed (0: not known yet)."""

    place: int
    speed: float
    own_speed: float = 0.0


def wait_ms(end: int, followers: Sequence[LaggingReader], span: int, may_wait: float, own_speed: float) -> int:
    """Return how long a reader waits before it reads up to `end`, and then asks again; 0: it continues.

    `span` bytes behind `end` are cached, `may_wait` milliseconds are the most it may wait, `own_speed` is its own.
    """
    needed = [
        (end - follower.place - span) / follower.speed
        for follower in followers
        if follower.speed > 0 and end - follower.place > span and follower.own_speed >= _NEARLY * own_speed
    ]
    worth = [one for one in needed if one <= _WORTH * may_wait]
    if not worth or may_wait < _ASK_LEAST_MS:
        return 0
    return int(min(max(*worth, _ASK_LEAST_MS), _ASK_MOST_MS, may_wait))
