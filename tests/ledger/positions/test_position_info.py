"""Goal: PositionInfo is Pulsar's, both ways. Method: states of a real Pulsar decode to exactly what was acknowledged
and what its statistics print. They encode to the same bytes. protobuf itself checks sets of every shape.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Unsupported
from pyspark_ledger.ledger.metadata.pulsar_value import parse_cursor_info
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.bitset import flags
from pyspark_ledger.ledger.positions.position_info import DecodedInfo, decode_cursor_info, decode_info, encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import MessageRange, NestedPositionInfo, PositionInfo
from tests.rigs.positions import contains_row, left_after

ROOT = Path(__file__).resolve().parents[2] / "fixtures" / "pulsar"
HOLES = ("cur-holes-none", "cur-holes-lz4", "cur-holes-messageranges")
BATCHES = ("cur-batch-none", "cur-batch-messageranges")
WHEN = ("live", "after-unload")
SUBSCRIPTIONS = ("few", "many", "runs")


def state_of(folder: str, subscription: str, when: str) -> tuple[DecodedInfo, bytes | None]:
    """Return the state that Pulsar stored, and whether it is in the metadata or in the cursor's ledger."""
    path = ROOT / folder / f"{subscription}.cursor-info.{when}.bin"
    info = parse_cursor_info(path.read_bytes(), path.name)
    if info.cursorsLedgerId < 0:
        return decode_cursor_info(info, path.name), None
    (last,) = (ROOT / folder / f"{subscription}.cursor-ledger-{info.cursorsLedgerId}.{when}").glob("*.bin")
    return decode_info(last.read_bytes(), last.name), last.read_bytes()


def acknowledged_of(folder: str, subscription: str) -> dict[tuple[int, int], set[int]]:
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    with gzip.open(ROOT / folder / f"{subscription}.acked.txt.gz", "rt") as lines:
        for line in lines:
            ledger, entry, *row = (int(part) for part in line.strip().split(":"))
            found[ledger, entry].add(row[0] if row else -1)
    return found


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
@pytest.mark.parametrize("folder", HOLES)
def test_holes_are_what_was_acknowledged(folder: str, subscription: str, when: str) -> None:
    said, raw = state_of(folder, subscription, when)
    given = acknowledged_of(folder, subscription)
    beyond = {place for place in given if place > (said.mark_delete.ledger_id, said.mark_delete.entry_id)}
    held = {
        (runs.ledger_id, entry)
        for runs in said.acknowledged.runs()
        for start, end in zip(runs.starts, runs.ends, strict=True)
        for entry in range(start, end)
    }
    assert held == beyond
    assert all((said.mark_delete.ledger_id, entry) in given for entry in range(said.mark_delete.entry_id + 1)), (
        "all before mark-delete was acknowledged"
    )
    assert said.crossing == ()
    if raw is not None:
        again = encode_info(said.mark_delete, said.acknowledged, said.properties, as_words=said.encoding == "words")
        assert again == raw


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
@pytest.mark.parametrize("folder", HOLES)
def test_holes_are_what_pulsars_statistics_print(folder: str, subscription: str, when: str) -> None:
    said, _ = state_of(folder, subscription, when)
    printed = json.loads((ROOT / folder / f"cursors.{when}.json").read_text())[subscription]
    assert str(said.mark_delete) == printed["markDeletePosition"]
    ranges = re.findall(r"\((\d+):(-?\d+)\.\.(\d+):(\d+)\]", printed["individuallyDeletedMessages"])
    wanted = [(int(a), int(b) + 1, int(d) + 1) for a, b, _, d in ranges]
    found = [
        (runs.ledger_id, int(start), int(end))
        for runs in said.acknowledged.runs()
        for start, end in zip(runs.starts, runs.ends, strict=True)
    ]
    assert found[: len(wanted)] == wanted
    assert len(found) == len(wanted) or "..." in printed["individuallyDeletedMessages"] or len(wanted) > 0


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
@pytest.mark.parametrize("folder", BATCHES)
def test_rows_of_batches_are_what_was_acknowledged(folder: str, subscription: str) -> None:
    said, _ = state_of(folder, subscription, "after-unload")
    for (ledger, entry), rows in acknowledged_of(folder, subscription).items():
        at = Position(ledger, entry)
        if at <= said.mark_delete:
            continue
        # The last batch is shorter than the others.
        size = 48 if entry == 468 else 64
        found = {row for row in range(size) if contains_row(said.acknowledged, at, row)}
        assert found == rows


@pytest.mark.parametrize("folder", BATCHES)
def test_rows_of_batches_come_out_as_pulsar_wrote_them(folder: str) -> None:
    said, raw = state_of(folder, "few", "live")
    assert said.acknowledged.batch_count() > 20
    assert encode_info(said.mark_delete, said.acknowledged, said.properties) == raw


def random_set(seed: int) -> PositionSet:
    dice = np.random.default_rng(seed)
    made = PositionSet()
    for ledger_id in dice.choice(2**40, 4, replace=False).tolist():
        made.add_entries(ledger_id, dice.integers(0, 3000, int(dice.integers(0, 900))))
        entries = np.unique(dice.integers(0, 300_000, 40))
        sizes = dice.integers(1, 400, len(entries))
        owner = np.repeat(np.arange(len(entries)), 3)
        rows = dice.integers(0, sizes[owner])
        made.add_rows(ledger_id, left_after(entries, sizes, owner, rows))
    return made


@pytest.mark.parametrize("as_words", [True, False, None])
@pytest.mark.parametrize("seed", range(6))
def test_protobuf_reads_what_is_written_and_writes_the_same(seed: int, as_words: bool | None) -> None:
    made, properties = random_set(seed), {"a": 1, "b": -(2**63), "": 0}
    data = encode_info(Position(3, -1), made, properties, as_words=as_words)
    message = PositionInfo.FromString(data)
    assert message.SerializeToString() == data
    assert {one.name: one.value for one in message.properties} == properties
    for one in message.individualDeletedMessageRanges:
        words = np.array(one.values, dtype=np.int64).view(np.uint64)
        assert np.array_equal(words, made.words(one.key))
    for pair in message.individualDeletedMessages:
        assert pair.lowerEndpoint.ledgerId == pair.upperEndpoint.ledgerId
        inside = np.arange(pair.lowerEndpoint.entryId + 1, pair.upperEndpoint.entryId + 1)
        assert made.contains_entries(pair.lowerEndpoint.ledgerId, inside).all()
    for batch in message.batchedEntryDeletionIndexInfo:
        left = made.rows(batch.position.ledgerId).of(batch.position.entryId)
        assert left is not None
        stated = flags(np.array(batch.deleteSet, dtype=np.int64).view(np.uint64))
        assert np.array_equal(np.flatnonzero(stated), np.flatnonzero(flags(left)))
    again = decode_info(data, "this")
    assert again.acknowledged == made
    assert (again.mark_delete, dict(again.properties)) == (Position(3, -1), properties)


def test_a_set_of_nothing() -> None:
    data = encode_info(Position(-1, -1), PositionSet())
    assert data == PositionInfo(ledgerId=-1, entryId=-1).SerializeToString()
    assert not decode_info(data, "this").acknowledged


def test_the_smaller_form_is_written() -> None:
    scattered, far = PositionSet(), PositionSet()
    scattered.add_entries(0, np.arange(0, 100_000, 2))
    far.add_entries(0, np.array([5, 90_000_000]))
    assert decode_info(encode_info(Position(0, 0), scattered), "this").encoding == "words"
    assert decode_info(encode_info(Position(0, 0), far), "this").encoding == "ranges"
    assert len(encode_info(Position(0, 0), far)) < 100


def test_ranges_go_before_words_as_in_pulsar() -> None:
    both = PositionInfo(ledgerId=1, entryId=2)
    both.individualDeletedMessages.append(nested(1, 4, 1, 6))
    both.individualDeletedMessageRanges.add(key=1, values=[1 << 40])
    assert decode_info(both.SerializeToString(), "this").acknowledged.entry_count() == 2


def test_a_range_over_ledgers_is_told_and_not_guessed() -> None:
    said = PositionInfo(ledgerId=1, entryId=2)
    said.individualDeletedMessages.extend([nested(1, 4, 1, 6), nested(1, 10, 3, 0)])
    found = decode_info(said.SerializeToString(), "this")
    assert found.acknowledged.entry_count() == 2
    assert found.crossing == ((Position(1, 10), Position(3, 0)),)


def test_a_full_delete_set_of_nothing_is_the_whole_entry() -> None:
    said = PositionInfo(ledgerId=1, entryId=2)
    said.batchedEntryDeletionIndexInfo.add(position=NestedPositionInfo(ledgerId=1, entryId=7))
    found = decode_info(said.SerializeToString(), "this").acknowledged
    assert found.contains(Position(1, 7))


def test_packed_words_are_read_too() -> None:
    wanted = decode_info(encode_info(Position(0, 0), random_set(1), as_words=True), "this").acknowledged
    plain = PositionInfo.FromString(encode_info(Position(0, 0), random_set(1), as_words=True))
    packed = b"".join(_packed(one.SerializeToString()) for one in plain.individualDeletedMessageRanges)
    del plain.individualDeletedMessageRanges[:]
    assert decode_info(plain.SerializeToString() + packed, "this").acknowledged == wanted


def test_many_ranges_are_read_in_windows() -> None:
    made = PositionSet()
    made.add_entries(2**50, np.arange(0, 400_000, 2))
    data = encode_info(Position(0, 0), made, as_words=False)
    assert len(data) > 4 * 1024 * 1024
    assert decode_info(data, "this").acknowledged == made


def test_a_field_that_is_not_known_is_refused() -> None:
    with pytest.raises(Unsupported, match="tag 0x3a"):
        decode_info(PositionInfo(ledgerId=1, entryId=2).SerializeToString() + b"\x3a\x00", "this")


def test_a_range_that_asks_for_all_memory_is_refused() -> None:
    said = PositionInfo(ledgerId=1, entryId=2)
    said.individualDeletedMessages.append(nested(1, 4, 1, 2**40))
    with pytest.raises(Corrupt, match="outside of 0 to"):
        decode_info(said.SerializeToString(), "this")


@pytest.mark.parametrize("as_words", [True, False])
def test_every_truncation_is_a_shorter_state_or_a_clear_error(as_words: bool) -> None:
    made = PositionSet()
    made.add_entries(7, np.array([1, 5, 70, 700]))
    made.add_rows(7, left_after(np.array([9]), np.array([70]), np.array([0]), np.array([3])))
    data = encode_info(Position(7, 0), made, {"p": 1}, as_words=as_words)
    for end in range(len(data)):
        try:
            found = decode_info(data[:end], "this").acknowledged
        except LedgerError:
            continue
        grown = made.copy()
        grown.update(found)
        assert grown == made


def nested(lower_ledger: int, lower: int, upper_ledger: int, upper: int) -> MessageRange:
    return MessageRange(
        lowerEndpoint=NestedPositionInfo(ledgerId=lower_ledger, entryId=lower),
        upperEndpoint=NestedPositionInfo(ledgerId=upper_ledger, entryId=upper),
    )


def _packed(body: bytes) -> bytes:
    """A LongListMap as field 6 with its words packed."""
    from pyspark_ledger.ledger.message.varints import varint
    from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LongListMap

    one = LongListMap.FromString(body)
    words = b"".join(varint(value) for value in one.values)
    message = b"\x08" + varint(one.key) + b"\x12" + varint(len(words)) + words
    return b"\x32" + varint(len(message)) + message
