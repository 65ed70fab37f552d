"""When a reader that is about to read from storage waits for those close behind it, so that one read serves them all.

Readers that are less than the cache apart share what the first of them reads. One that runs away makes storage be read
again for each of those behind. So it waits, where that helps, and never for long.

Rules
- Only who would read from storage waits, and only for readers that are behind the end of what it is going to read by
  more than `span` bytes, which the cache holds, and can come near enough in the time that it may still wait.
- A reader waits `part` of the time that its catching up takes, at most. That time is what has passed, less waiting, and
  what is left at its own pace: that of its last batches, without waiting. One batch says little: beside others the
  next may take twice as long.
- One that stands still is not waited for, by its pace over the last seconds, nor is one that is slower by itself.

Pure: the clock and the places are arguments. Bytes are of entries, places are numbers of bytes before them.
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
    """How one reader goes through one log: since when, how long it has waited, where it was in the last seconds."""

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
        """It asks for what comes next, and waits no more for what it asked for before."""
        self.waits(now_ms, 0)
        if self._batches and place < self._batches[-1][1]:
            self._batches.clear()
        if not self._batches or place > self._batches[-1][1]:
            self._batches.append((now_ms - self.waited_ms, place))

    def waits(self, now_ms: int, wait_ms: int) -> None:
        """It was told to wait; what it waited since it was told so before counts."""
        if self.asked_ms is not None:
            self.waited_ms += now_ms - self.asked_ms
        self.asked_ms = now_ms if wait_ms else None

    def speed(self, now_ms: int) -> float:
        """Bytes a millisecond over the last seconds; 0 when it stands still."""
        if not self.seen:
            return 0.0
        since, place = self.seen[0]
        passed = now_ms - since
        return (self.seen[-1][1] - place) / passed if 0 < passed <= 2 * _SEEN_MS else 0.0

    def own_speed(self) -> float:
        """Bytes a millisecond of its last batches, without waiting; 0 when it has only just begun."""
        if len(self._batches) <= _BATCHES_LEAST:
            return 0.0
        (since, begin), (until, end) = self._batches[0], self._batches[-1]
        return (end - begin) / max(until - since, 1)

    def may_wait_ms(self, now_ms: int, left: int, part: float) -> float:
        """How much longer it may wait, with `left` bytes to read."""
        speed = self.own_speed()
        if not speed:
            return 0.0
        waited = self.waited_ms + (0 if self.asked_ms is None else now_ms - self.asked_ms)
        return part * (now_ms - self.began_ms - waited + left / speed) - waited


@dataclass(frozen=True, slots=True)
class LaggingReader:
    """A reader behind: where it is, and how it goes: over the last seconds, and by itself (0: not known yet)."""

    place: int
    speed: float
    own_speed: float = 0.0


def wait_ms(end: int, followers: Sequence[LaggingReader], span: int, may_wait: float, own_speed: float) -> int:
    """How long a reader waits before it reads up to `end`, and asks again then; 0: it goes on.

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
