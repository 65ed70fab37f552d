"""Unacknowledged rows of the partly acknowledged entries of one segment (a file of a ledger).

Each entry has a bit set of rows, which Pulsar calls `deleteSet`. The bit sets of all entries are stored in one array of
64-bit words:

    entries   e0        e1     e2 …        ascending, each once
    words     w w w     w      w w …       entry i has words[starts[i]:starts[i + 1]], at least one word

Invariants
- A set bit is a row that is *not* acknowledged. Rows after the last word are acknowledged.
- Every entry has an unacknowledged row. An entry whose rows are all acknowledged belongs to the set of whole entries.
- An acknowledgement only clears bits. So a repeated acknowledgement changes nothing, and the order of acknowledgements
  has no effect.
- A `BatchRows` is immutable.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.bitset import Flags, Integers, Words

_ONES = np.uint64(2**64 - 1)


class BatchRows(NamedTuple):
    """Unacknowledged rows of some entries of one segment."""

    entries: Integers
    starts: Integers
    words: Words

    @classmethod
    def remaining_of_words(
        cls, entries: Integers, sizes_of_all: Integers, counts: Integers, words: Words
    ) -> tuple[BatchRows, int]:
        """Acknowledge the rows whose bits are set in `words`. Returns the remaining rows, and an invalid entry or -1.

        `counts[i]` words belong to `entries[i]`. Entries may be unordered and repeated. Entry `e` has
        `sizes_of_all[e]` rows. An entry is invalid if `words` has a bit for a row that the entry does not have.
        """
        distinct = np.unique(entries)
        starts, full = _full(sizes_of_all[distinct])
        at = np.searchsorted(distinct, entries)
        within = np.arange(len(words)) - np.repeat(np.cumsum(counts) - counts, counts)
        owner = np.repeat(at, counts)
        outside = within >= np.diff(starts)[owner]
        if words[outside].any():
            return NO_ROWS, int(distinct[owner[outside][np.flatnonzero(words[outside])[0]]])
        acked = np.zeros(len(full), dtype=np.uint64)
        np.bitwise_or.at(acked, (starts[owner] + within)[~outside], words[~outside])
        wrong = np.flatnonzero(acked & ~full)
        if len(wrong):
            return NO_ROWS, int(distinct[np.searchsorted(starts, wrong[0], side="right") - 1])
        return cls(distinct, starts, full & ~acked), -1

    @classmethod
    def of_pieces(cls, entries: Integers, pieces: list[Words]) -> BatchRows:
        """Return the rows from the bit sets of some entries, in any order. `pieces` are the words of each entry.

        The rows of an entry that is listed several times are intersected.
        """
        order = np.argsort(entries, kind="stable")
        whole = NO_ROWS
        padded = [pieces[number] if len(pieces[number]) else np.zeros(1, np.uint64) for number in order.tolist()]
        counts = np.fromiter((len(piece) for piece in padded), np.int64, len(padded))
        ordered = entries[order]
        is_repeated = np.append(False, ordered[1:] == ordered[:-1]) if len(ordered) else np.zeros(0, np.bool_)
        while len(ordered):
            first = np.flatnonzero(~is_repeated)
            chosen = [padded[number] for number in first.tolist()]
            part = cls(ordered[first], np.append(0, np.cumsum(counts[first])), np.concatenate(chosen))
            whole = whole.intersection(part)
            rest = np.flatnonzero(is_repeated)
            padded, counts, ordered = [padded[number] for number in rest.tolist()], counts[rest], ordered[rest]
            is_repeated = np.append(False, ordered[1:] == ordered[:-1]) if len(ordered) else is_repeated[:0]
        return whole

    def __len__(self) -> int:
        return len(self.entries)

    def intersection(self, other: BatchRows) -> BatchRows:
        """Return the intersection of the unacknowledged rows. An entry that only one side has is taken unchanged."""
        if not len(self):
            return other
        if not len(other):
            return self
        entries = np.union1d(self.entries, other.entries)
        counts = np.ones(len(entries), dtype=np.int64)
        places = []
        for side in (self, other):
            at = np.searchsorted(entries, side.entries)
            counts[at] = np.maximum(counts[at], np.diff(side.starts))
            places.append(at)
        starts = np.append(0, np.cumsum(counts))
        spread = [np.zeros(int(starts[-1]), dtype=np.uint64) for _ in places]
        presence = [np.zeros(len(entries), dtype=np.bool_) for _ in places]
        for side, at, words, present in zip((self, other), places, spread, presence, strict=True):
            words[side.word_places(starts[at])] = side.words
            present[at] = True
        both = np.repeat(presence[0] & presence[1], counts)
        return BatchRows(entries, starts, np.where(both, spread[0] & spread[1], spread[0] | spread[1]))

    def word_places(self, at: Integers) -> Integers:
        """Return the index of each word in an array where the words of entry `i` start at `at[i]`."""
        places: Integers = np.repeat(at - self.starts[:-1], np.diff(self.starts)) + np.arange(len(self.words))
        return places

    def changed_by(self, other: BatchRows) -> Flags:
        """Return for each entry of `other` whether `other` acknowledges a row of the entry that `self` does not."""
        if not len(other):
            return np.zeros(0, dtype=np.bool_)
        changed = np.ones(len(other), dtype=np.bool_)
        at = np.searchsorted(self.entries, other.entries)
        both = np.flatnonzero(np.append(self.entries, -1)[at] == other.entries)
        if len(both):
            before, after = self.left_counts()[at[both]], self.intersection(other)
            changed[both] = after.left_counts()[np.searchsorted(after.entries, other.entries[both])] < before
        return changed

    def inverse(self, sizes_of_all: Integers) -> BatchRows:
        """Return the complement: acknowledged rows become unacknowledged, and the reverse.

        Entry `e` has `sizes_of_all[e]` rows.
        """
        if not len(self):
            return self
        starts, full = _full(sizes_of_all[self.entries])
        rest = np.zeros(len(full), dtype=np.uint64)
        counts = np.minimum(np.diff(self.starts), np.diff(starts))
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rest[np.repeat(starts[:-1], counts) + within] = self.words[np.repeat(self.starts[:-1], counts) + within]
        return BatchRows(self.entries, starts, full & ~rest)

    def left_counts(self) -> Integers:
        return _by_entry(np.add, bitset.counts(self.words), self.starts)

    def divided(self) -> tuple[Integers, BatchRows]:
        """Return the entries without an unacknowledged row, and the rows of all other entries."""
        if not len(self):
            return self.entries, self
        empty = _by_entry(np.bitwise_or, self.words, self.starts) == 0
        return self.entries[empty], self.selected(~empty)

    def selected(self, chosen: Flags) -> BatchRows:
        if chosen.all():
            return self
        counts = np.diff(self.starts)
        words = self.words[np.repeat(chosen, counts)]
        return BatchRows(self.entries[chosen], np.append(0, np.cumsum(counts[chosen])), words)

    def of(self, entry_id: int) -> Words | None:
        """Return the words of one entry. Returns None if the entry is not partly acknowledged."""
        at = int(np.searchsorted(self.entries, entry_id))
        if at == len(self.entries) or int(self.entries[at]) != entry_id:
            return None
        return self.words[int(self.starts[at]) : int(self.starts[at + 1])]


NO_ROWS = BatchRows(np.zeros(0, np.int64), np.zeros(1, np.int64), bitset.NO_WORDS)


def _full(sizes: Integers) -> tuple[Integers, Words]:
    """Return the starts of the entries' words, and the words. Entry `i` has a set bit for each of its `sizes[i]` rows.

    An entry without rows has one word of 0.
    """
    starts = np.append(0, np.cumsum(np.maximum(-(-sizes // 64), 1)))
    words = np.full(int(starts[-1]), _ONES, dtype=np.uint64)
    within = (sizes & 63).astype(np.uint64)
    some = (np.uint64(1) << within) - np.uint64(1)
    words[starts[1:] - 1] = np.where((within > 0) | (sizes == 0), some, _ONES)
    return starts, words


def _by_entry(how: np.ufunc, values: Integers | Words, starts: Integers) -> Integers:
    if len(starts) == 1:
        return np.zeros(0, dtype=np.int64)
    reduced: Integers = how.reduceat(values, starts[:-1])
    return reduced
