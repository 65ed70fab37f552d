"""Size and time of saving and recovering ten million acknowledged ranges of a cursor.

`positions_save`: bytes of the state in Pulsar's format, divided by the entropy of the set of acknowledgements. The
format is chunks of a Protobuf message (`LongListMap`), compressed with ZSTD. The entropy is the smallest size that an
encoding can reach if it knows only the probability of each acknowledgement. A smaller entropy than 4 KiB counts as 4
KiB. If the acknowledgements depend on each other, the entropy is computed from the lengths of successive acknowledged
ranges. The result is the worst ratio of five patterns.

`positions_time`: time to save, split into chunks and recover 10 M random ranges. The base uses protobuf's own objects,
as Pulsar does. It takes 100 k ranges, and its time is multiplied by 100.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.harness import compare
from pyspark_ledger.ledger.message.compression import ZSTD
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.position_chunks import decode_state, encode_state, state_ending_at
from pyspark_ledger.ledger.positions.position_info import decode_info, encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import PositionInfo

RANGES = 10_000_000
BASE_RANGES = 100_000
LEDGER_ENTRIES = 2_000_000
_START = Position(0, -1)
Flags = npt.NDArray[np.bool_]


def patterns(ranges: int = RANGES) -> Iterator[tuple[str, Flags, float]]:
    """Return patterns: name, mask of acknowledged entries, and its entropy in bytes."""
    dice = np.random.default_rng(1)
    half = dice.random(4 * ranges) < 0.5
    yield "random half", half, _order_0(half)
    alternating = np.zeros(2 * ranges, dtype=np.bool_)
    alternating[::2] = True
    yield "alternation", alternating, 0.0
    sparse = dice.random(11 * ranges) >= 1 / 11
    yield "9 % holes", sparse, _order_0(sparse)
    lengths = np.empty(2 * ranges, dtype=np.int64)
    lengths[0::2], lengths[1::2] = dice.geometric(1 / 4, ranges), dice.geometric(1 / 1.5, ranges)
    bursts = np.repeat(np.tile([True, False], ranges), lengths)
    yield "bursts", bursts, _order_0_of_lengths(lengths[0::2]) + _order_0_of_lengths(lengths[1::2])
    few = dice.random(20 * ranges) >= 0.01
    yield "1 % holes", few, _order_0(few)


def position_set(acknowledged: Flags) -> PositionSet:
    """Return the set of positions, in segments of some million entries."""
    made = PositionSet()
    for number, at in enumerate(range(0, len(acknowledged), LEDGER_ENTRIES)):
        made.add_words(number, bitset.of_flags(acknowledged[at : at + LEDGER_ENTRIES]))
    return made


def save(state: PositionSet) -> list[bytes]:
    """Return the entries of a whole state."""
    return encode_state(encode_info(_START, state, as_words=True), compression=ZSTD)


def recover(entries: list[bytes]) -> PositionSet:
    """Return the set that the entries encode."""
    state = state_ending_at(len(entries) - 1, lambda number: memoryview(entries[number]), "the benchmark")
    return decode_info(decode_state(state, ZSTD, "the benchmark"), "the benchmark").acknowledged


def protobuf_round_trip(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Encode and decode through protobuf objects, one per range."""
    info = PositionInfo(ledgerId=0, entryId=-1)
    for lower, upper in runs:
        one = info.individualDeletedMessages.add()
        one.lowerEndpoint.ledgerId, one.lowerEndpoint.entryId = 0, lower
        one.upperEndpoint.ledgerId, one.upperEndpoint.entryId = 0, upper
    again = PositionInfo.FromString(info.SerializeToString())
    return [(one.lowerEndpoint.entryId, one.upperEndpoint.entryId) for one in again.individualDeletedMessages]


def main() -> None:
    """Measure sizes first, then times."""
    worst = 0.0
    print(f"\npositions_save\n  {'pattern':<12} {'ranges':>10} {'MB':>8} {'entropy':>8} {'ratio':>6}")
    for name, acknowledged, entropy in patterns():
        state = position_set(acknowledged)
        size = sum(len(entry) for entry in save(state))
        ratio = size / max(entropy, 4096)
        worst = max(worst, ratio)
        print(f"  {name:<12} {state.range_count():>10} {size / 1e6:>8.3f} {entropy / 1e6:>8.3f} {ratio:>6.2f}")
    print(f"ratio positions_save {worst:.3f}", flush=True)

    dice = np.random.default_rng(2)
    state = position_set(dice.random(4 * RANGES) < 0.5)
    starts, ends = bitset.runs(bitset.of_flags(dice.random(4 * BASE_RANGES) < 0.5))
    runs = list(zip((starts - 1).tolist(), (ends - 1).tolist(), strict=True))
    entries = save(state)
    for what, work in (("save", lambda: save(state)), ("recover", lambda: recover(entries))):
        began = time.perf_counter()
        work()
        print(f"  {what} {state.range_count()} ranges in {time.perf_counter() - began:.3f} s", flush=True)
    assert recover(entries) == state  # noqa: S101 — a wrong result may be fast

    def ours() -> float:
        began = time.perf_counter()
        recover(save(state))
        return (time.perf_counter() - began) / 100

    compare("positions_time", ours, lambda: _timed(runs), of_time=True)


def _timed(runs: list[tuple[int, int]]) -> float:
    began = time.perf_counter()
    protobuf_round_trip(runs)
    return time.perf_counter() - began


def _order_0(acknowledged: Flags) -> float:
    share = float(acknowledged.mean())
    return -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) * len(acknowledged) / 8


def _order_0_of_lengths(lengths: npt.NDArray[np.int64]) -> float:
    counts = np.bincount(lengths)
    shares = counts[counts > 0] / len(lengths)
    return float(-(shares * np.log2(shares)).sum()) * len(lengths) / 8


if __name__ == "__main__":
    main()
