"""Goal: who runs away waits where that spares a read of storage, a part of its time at most, and never for nothing.
Method: the rules one by one, as values; a race of readers by hand, with storage counted.
"""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.cache.reader_throttle import LaggingReader, ReaderThrottle, wait_ms

MB = 1024 * 1024
FAST = 0.05 * MB  # a millisecond


def test_who_is_near_enough_is_not_waited_for() -> None:
    assert wait_ms(60 * MB, [LaggingReader(20 * MB, FAST, FAST)], 40 * MB, 1000, FAST) == 0
    assert wait_ms(61 * MB, [LaggingReader(20 * MB, FAST, FAST)], 40 * MB, 1000, FAST) > 0


def test_the_wait_is_what_the_follower_needs_and_never_more_than_is_left() -> None:
    behind = [LaggingReader(20 * MB, FAST, FAST)]
    assert wait_ms(65 * MB, behind, 40 * MB, 1000, FAST) == 100
    assert wait_ms(65 * MB, behind, 40 * MB, 60, FAST) == 60
    assert wait_ms(600 * MB, behind, 40 * MB, 100_000, FAST) == 400  # and asks again then
    assert wait_ms(60 * MB + 1, behind, 40 * MB, 1000, FAST) == 20


@pytest.mark.parametrize(
    "follower",
    [LaggingReader(20 * MB, 0.0, FAST), LaggingReader(20 * MB, FAST, FAST / 2), LaggingReader(0, FAST / 1000, FAST)],
    ids=["it stands still", "it is half as fast and falls behind again", "it is too far away"],
)
def test_where_waiting_helps_nobody_waits(follower: LaggingReader) -> None:
    assert wait_ms(65 * MB, [follower], 40 * MB, 1000, FAST) == 0


def test_nobody_waits_with_nothing_left_to_wait() -> None:
    assert wait_ms(65 * MB, [LaggingReader(20 * MB, FAST, FAST)], 40 * MB, 10, FAST) == 0
    assert wait_ms(65 * MB, [], 40 * MB, 1000, FAST) == 0


def test_a_reader_waits_a_part_of_its_time_without_waiting() -> None:
    pace = ReaderThrottle(began_ms=0)
    for number in range(3):
        pace.begins_batch(number * 100, number * 10 * MB)
    assert pace.own_speed() == pytest.approx(0.1 * MB)
    assert pace.may_wait_ms(200, 80 * MB, 0.1) == pytest.approx(100)  # of 200 ms and 800 more
    pace.waits(200, 50)
    pace.waits(260, 50)
    pace.waits(300, 0)
    assert pace.waited_ms == 100
    assert pace.may_wait_ms(300, 80 * MB, 0.1) == pytest.approx(0)
    pace.begins_batch(310, 20 * MB)
    assert pace.waited_ms == 100


def test_before_its_pace_is_known_a_reader_never_waits() -> None:
    pace = ReaderThrottle(began_ms=0)
    assert pace.may_wait_ms(1000, 80 * MB, 0.1) == 0
    pace.begins_batch(0, 0)
    pace.begins_batch(100, 10 * MB)
    assert pace.may_wait_ms(1000, 80 * MB, 0.1) == 0


def test_a_batch_that_was_quick_is_no_pace() -> None:
    pace, now = ReaderThrottle(began_ms=0), 0
    for number, took in enumerate([100] * 6 + [20]):
        pace.begins_batch(now, number * 10 * MB)
        now += took
    pace.begins_batch(now, 70 * MB)
    assert pace.own_speed() == pytest.approx(60 * MB / 520)
    assert pace.may_wait_ms(now, 0, 0.1) == pytest.approx(now / 10)
    pace.begins_batch(now + 100, 10 * MB)  # it was set back, and its pace is not known
    assert pace.own_speed() == 0


def test_a_pace_is_that_of_the_last_seconds() -> None:
    pace = ReaderThrottle(began_ms=0)
    for second in range(10):
        pace.at(second * 1000, second * MB)
    assert pace.speed(9000) == pytest.approx(MB / 1000)
    assert pace.speed(60_000) == 0.0
    pace.at(61_000, 3 * MB)  # it was set back
    assert pace.speed(61_000) == 0.0


def race(starts: list[int], *, paced: bool, blocks: int = 400, room: int = 40) -> tuple[float, list[int]]:
    """Reads per block, and the seconds of each reader, of readers that read a block every 10 ms over a cache of `room`
    blocks.

    The cache evicts blocks that all readers have passed first, then the last block.
    """
    held, reads, at = set[int](), 0, [0] * len(starts)
    paces = [ReaderThrottle(start) for start in starts]
    free, done = list(starts), [0] * len(starts)
    for now in range(0, 100_000, 10):
        for number, pace in enumerate(paces):
            if done[number] or free[number] > now:
                continue
            if pace.asked_ms is None:
                pace.begins_batch(now, at[number])
            pace.at(now, at[number])
            followers = [
                LaggingReader(at[other], one.speed(now) or 0.1, one.own_speed() or 0.1)
                for other, one in enumerate(paces)
                if other != number and starts[other] <= now and at[other] <= at[number]
            ]
            budget = pace.may_wait_ms(now, blocks - at[number], 0.1)
            missing = at[number] not in held
            wait = wait_ms(at[number] + 1, followers, room, budget, pace.own_speed()) if paced and missing else 0
            pace.waits(now, wait)
            free[number] = now + max(wait, 10)
            if wait:
                continue
            reads += missing
            at[number] += 1
            if missing:
                held = {block for block in (*held, at[number] - 1) if block >= min(at)}
                held -= {max(held)} if len(held) > room else set()
            done[number] = now + 10 - starts[number] if at[number] == blocks else 0
        if all(done):
            return reads / blocks, done
    raise AssertionError((at, done))


def test_readers_that_follow_closely_share_what_one_of_them_reads() -> None:
    """The last is 49 blocks behind the first, where forty are kept."""
    starts = [number * 70 for number in range(8)]
    alone, took = race(starts, paced=False)
    together, paced = race(starts, paced=True)
    assert alone > 2
    assert together < 1.1
    assert all(with_it <= without * 1.1 for with_it, without in zip(paced, took, strict=True))


def test_who_follows_too_far_behind_costs_nobody_more_than_a_tenth() -> None:
    starts = [number * 150 for number in range(8)]
    took = race(starts, paced=True)[1]
    assert all(4000 <= one <= 4400 for one in took)


def test_readers_that_are_too_far_from_one_another_do_not_wait() -> None:
    assert race([0, 3000], paced=True) == race([0, 3000], paced=False)
