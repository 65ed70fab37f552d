"""Set of positions, such as the acknowledgements of a cursor: whole entries, and rows of partly acknowledged entries.

In this module a *ledger* means a segment, as in Pulsar.

Invariants
- The whole entries of a ledger are a bit set with a bit for each entry (`ledger.positions.bitset`).
- The remaining rows of an entry are its rows that are not in the set. `ledger.positions.partial_entries` stores them
  for each entry that is partly in the set.
- An entry whose bit is set has no remaining rows.
- A repeated addition changes nothing, and the order of additions has no effect. Only `trim_below` removes positions.
- A range never crosses the end of a ledger. Pulsar before 2.4 wrote ranges that cross it. `split_range` splits them.
- The number of positions and their distance have no limit. Entry ids are at most 2**31 - 1, as in Pulsar. Reason: a
  large number in a wrong request must not exhaust the memory.

Bit sets were measured against lists of ranges and Roaring bitmaps. Only bit sets add, look up and encode in linear
time. Ten million scattered ranges take 5 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.bitset import NO_WORDS, Flags, Integers, Words
from pyspark_ledger.ledger.positions.partial_entries import NO_ROWS, BatchRows

ENTRY_ID_MAX = 2**31 - 1


class LedgerRuns(NamedTuple):
    """Ranges of whole entries of one ledger: `[starts[i], ends[i])`, ascending."""

    ledger_id: int
    starts: Integers
    ends: Integers


class PositionSet:
    """Set of positions. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[int, Words] = {}
        self._rows: dict[int, BatchRows] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionSet):
            return NotImplemented
        return self.ledgers() == other.ledgers() and all(_same(self, other, ledger_id) for ledger_id in self.ledgers())

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __bool__(self) -> bool:
        return bool(self.ledgers())

    def copy(self) -> PositionSet:
        other = PositionSet()
        other._entries = {ledger_id: words.copy() for ledger_id, words in self._entries.items()}
        other._rows = dict(self._rows)
        return other

    def ledgers(self) -> list[int]:
        """Return the ids of the ledgers with positions in the set, ascending."""
        return sorted({ledger_id for ledger_id, words in self._entries.items() if words.any()} | self._rows.keys())

    def words(self, ledger_id: int) -> Words:
        """Return the bit set of the whole entries of one ledger, without trailing zero words."""
        return bitset.trimmed(self._entries.get(ledger_id, NO_WORDS))

    def rows(self, ledger_id: int) -> BatchRows:
        """Return the remaining rows of the partly acknowledged entries of one ledger."""
        return self._rows.get(ledger_id, NO_ROWS)

    def add_entries(self, ledger_id: int, entries: Integers) -> None:
        """Add whole entries, which may be unordered and repeated."""
        if len(entries):
            _require_entry_ids(ledger_id, int(entries.min()), int(entries.max()))
            bitset.put(self._room(ledger_id, int(entries.max()) + 1), entries)
            self._absorb_rows(ledger_id)

    def add_run(self, ledger_id: int, start: int, end: int) -> None:
        """Add the entries `[start, end)` of a ledger."""
        if start < end:
            _require_entry_ids(ledger_id, start, end - 1)
            bitset.put_run(self._room(ledger_id, end), start, end)
            self._absorb_rows(ledger_id)

    def add_words(self, ledger_id: int, words: Words) -> None:
        words = bitset.trimmed(words)
        if len(words):
            _require_entry_ids(ledger_id, 0, (len(words) << 6) - 1)
            self._room(ledger_id, len(words) << 6)[: len(words)] |= words
            self._absorb_rows(ledger_id)

    def add_rows(self, ledger_id: int, left: BatchRows) -> None:
        """Add rows of the entries in `left`. `left` has the rows of each entry that are *not* added.

        An entry without remaining rows is added as a whole.
        """
        if not len(left):
            return
        _require_entry_ids(ledger_id, int(left.entries[0]), int(left.entries[-1]))
        done, kept = self.rows(ledger_id).intersection(left).divided()
        self._keep_rows(ledger_id, kept)
        self.add_entries(ledger_id, done)
        self._absorb_rows(ledger_id)

    def update(self, other: PositionSet) -> None:
        for ledger_id in other.ledgers():
            self.add_words(ledger_id, other.words(ledger_id))
            self.add_rows(ledger_id, other.rows(ledger_id))

    def remove_entries(self, ledger_id: int, entries: Integers) -> None:
        """Remove whole entries of one ledger."""
        words = self._entries.get(ledger_id, NO_WORDS)
        flagged = bitset.flags(words)
        flagged[entries[entries < len(flagged)]] = False
        self._entries[ledger_id] = bitset.of_flags(flagged)

    def difference(self, other: PositionSet) -> PositionSet:
        """Return the positions of this set that `other` lacks.

        If `other` lacks a row of a partly acknowledged entry, the result has all rows of this entry that are in this
        set.
        """
        difference = PositionSet()
        for ledger_id in self.ledgers():
            mine, theirs = self.words(ledger_id), other.words(ledger_id)
            common = np.zeros(len(mine), dtype=np.uint64)
            shared = min(len(mine), len(theirs))
            common[:shared] = theirs[:shared]
            difference.add_words(ledger_id, mine & ~common)
            rows = self.rows(ledger_id)
            if len(rows):
                rows = rows.selected(~other.contains_entries(ledger_id, rows.entries))
                difference.add_rows(ledger_id, rows.selected(other.rows(ledger_id).changed_by(rows)))
        return difference

    def contains(self, position: Position) -> bool:
        """Return whether a whole entry is in the set."""
        return bitset.is_set(self._entries.get(position.ledger_id, NO_WORDS), position.entry_id)

    def contains_entries(self, ledger_id: int, entries: Integers) -> Flags:
        """Return for each entry of a ledger whether the whole entry is in the set."""
        return bitset.test(self._entries.get(ledger_id, NO_WORDS), entries)

    def next_missing(self, position: Position) -> Position:
        """Return the first entry from `position` on, in the same ledger, that is not in the set as a whole entry."""
        words = self._entries.get(position.ledger_id, NO_WORDS)
        return Position(position.ledger_id, bitset.next_clear(words, max(position.entry_id, 0)))

    def entry_count(self) -> int:
        """Return the number of whole entries."""
        return sum(bitset.count(words) for words in self._entries.values())

    def range_count(self) -> int:
        """Return the number of ranges of whole entries."""
        return sum(bitset.run_count(words) for words in self._entries.values())

    def batch_count(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def runs(self) -> Iterator[LedgerRuns]:
        """Yield the ranges of whole entries of each ledger, ascending."""
        for ledger_id in self.ledgers():
            starts, ends = bitset.runs(self.words(ledger_id))
            if len(starts):
                yield LedgerRuns(ledger_id, starts, ends)

    def trim_below(self, position: Position) -> None:
        for ledger_id in [*self._entries, *self._rows]:
            if ledger_id < position.ledger_id:
                self._entries.pop(ledger_id, None)
                self._rows.pop(ledger_id, None)
        words = self._entries.get(position.ledger_id)
        if words is not None:
            bitset.clear_below(words, max(position.entry_id, 0))
            if not words.any():
                del self._entries[position.ledger_id]
        rows = self.rows(position.ledger_id)
        self._keep_rows(position.ledger_id, rows.selected(rows.entries >= position.entry_id))

    def within(self, range_: PositionRange) -> PositionSet:
        part = PositionSet()
        start, end = range_.start, range_.end
        for ledger_id in self.ledgers():
            if not start.ledger_id <= ledger_id <= end.ledger_id:
                continue
            words, rows = self.words(ledger_id).copy(), self.rows(ledger_id)
            if ledger_id == end.ledger_id:
                bitset.clear_from(words, end.entry_id)
                rows = rows.selected(rows.entries < end.entry_id)
            part.add_words(ledger_id, words)
            part.add_rows(ledger_id, rows)
        part.trim_below(start)
        return part

    def _room(self, ledger_id: int, bits: int) -> Words:
        words = self._entries[ledger_id] = bitset.grown(self._entries.get(ledger_id, NO_WORDS), bits)
        return words

    def _absorb_rows(self, ledger_id: int) -> None:
        rows = self.rows(ledger_id)
        if len(rows):
            self._keep_rows(ledger_id, rows.selected(~self.contains_entries(ledger_id, rows.entries)))

    def _keep_rows(self, ledger_id: int, rows: BatchRows) -> None:
        if len(rows):
            self._rows[ledger_id] = rows
        else:
            self._rows.pop(ledger_id, None)


def split_range(lower: Position, upper: Position, ledgers: Sequence[tuple[int, int]]) -> list[PositionRange]:
    """Split the range `(lower, upper]`, which excludes `lower`, into ranges within one ledger, as Pulsar does.

    `ledgers` are the ids and entry counts of the log's ledgers, ascending. Ledgers between `lower` and `upper` become
    whole ranges. If `ledgers` lacks the ledger of `lower`, its entries are left out.
    """
    if lower.ledger_id == upper.ledger_id:
        ranges = [PositionRange(lower.next(), upper.next())]
    else:
        ranges = [
            PositionRange(
                Position(ledger_id, lower.entry_id + 1 if ledger_id == lower.ledger_id else 0),
                Position(ledger_id, entries),
            )
            for ledger_id, entries in ledgers
            if lower.ledger_id <= ledger_id < upper.ledger_id
        ]
        ranges.append(PositionRange(Position(upper.ledger_id, 0), upper.next()))
    return [range_ for range_ in ranges if range_]


def _require_entry_ids(ledger_id: int, least: int, most: int) -> None:
    if least < 0 or most > ENTRY_ID_MAX:
        wrong = least if least < 0 else most
        raise Refused(
            f"ledger {ledger_id} has no entry {wrong}: ids go from 0 to {ENTRY_ID_MAX}",
            hint="Give positions that were read from the log",
        )


def _same(left: PositionSet, right: PositionSet, ledger_id: int) -> bool:
    left_rows, right_rows = left.rows(ledger_id), right.rows(ledger_id)
    if not np.array_equal(left.words(ledger_id), right.words(ledger_id)):
        return False
    if not np.array_equal(left_rows.entries, right_rows.entries):
        return False
    common = left_rows.intersection(right_rows).left_counts()
    return bool(np.array_equal(common, left_rows.left_counts())) and bool(
        np.array_equal(common, right_rows.left_counts())
    )


def _range(runs: LedgerRuns, at: int) -> PositionRange:
    return PositionRange(Position(runs.ledger_id, int(runs.starts[at])), Position(runs.ledger_id, int(runs.ends[at])))
