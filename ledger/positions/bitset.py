"""Sets of numbers, stored as bits in arrays of 64-bit words, as in Java's `BitSet.toLongArray`.

A *word* is a `uint64` whose lowest byte is stored first (little-endian). It has 64 bits. The bit of number `n` is in
word `n // 64`, at place `n % 64`, counted from the lowest bit. A *run* is a range `[start, end)` of set bits between
bits that are not set. An array may end with words that are 0; they do not change the set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NO_WORDS: Words = np.zeros(0, dtype=np.uint64)
_ONES = 2**64 - 1
_SET_OF_16 = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8)).reshape(-1, 16).sum(1, dtype=np.uint8)


def word_count(bits: int) -> int:
    return -(-bits // 64)


def grown(words: Words, bits: int) -> Words:
    """Return the words, or a longer copy if they have no room for `bits` bits.

    A copy is at least 1.5 times as long as `words`, so that many small steps need few copies.
    """
    needed = word_count(bits)
    if needed <= len(words):
        return words
    longer = np.zeros(max(needed, len(words) * 3 // 2), dtype=np.uint64)
    longer[: len(words)] = words
    return longer


def trimmed(words: Words) -> Words:
    nonzero = np.flatnonzero(words)
    return words[: int(nonzero[-1]) + 1] if len(nonzero) else NO_WORDS


def put(words: Words, numbers: Integers) -> None:
    """Set the bits of `numbers`, which may be unordered and repeated. The words must have room for all numbers."""
    if not len(numbers):
        return
    low, high = int(numbers.min()), int(numbers.max())
    first, stop = low >> 6, (high >> 6) + 1
    if (stop - first) * 8 <= 4 * len(numbers):
        words[first:stop] |= of_flags(_marked(numbers - (first << 6), (stop - first) << 6))
    else:
        at = numbers >> 6
        bits = np.left_shift(np.uint64(1), (numbers & 63).astype(np.uint64))
        np.bitwise_or.at(words, at, bits)


def put_run(words: Words, start: int, end: int) -> None:
    """Set the bits `[start, end)`. The words must have room for them."""
    if start >= end:
        return
    first, last = start >> 6, (end - 1) >> 6
    head = np.uint64(_ONES << (start & 63) & _ONES)
    tail = np.uint64(_ONES >> (63 - ((end - 1) & 63)))
    if first == last:
        words[first] |= head & tail
        return
    words[first] |= head
    words[first + 1 : last] = np.uint64(_ONES)
    words[last] |= tail


def clear_below(words: Words, end: int) -> None:
    whole = min(end >> 6, len(words))
    words[:whole] = 0
    if whole < len(words) and end & 63:
        words[whole] &= np.uint64(_ONES << (end & 63) & _ONES)


def clear_from(words: Words, start: int) -> None:
    at = max(start, 0) >> 6
    if at < len(words):
        words[at] &= np.uint64((1 << (max(start, 0) & 63)) - 1)
        words[at + 1 :] = 0


def test(words: Words, numbers: Integers) -> Flags:
    at = numbers >> 6
    inside = (numbers >= 0) & (at < len(words))
    found = np.zeros(len(numbers), dtype=np.uint64)
    found[inside] = words[at[inside]] >> (numbers[inside] & 63).astype(np.uint64)
    flags: Flags = (found & np.uint64(1)).astype(np.bool_)
    return flags


def is_set(words: Words, number: int) -> bool:
    return 0 <= number < len(words) << 6 and bool(int(words[number >> 6]) >> (number & 63) & 1)


def counts(words: Words) -> Integers:
    """Return the number of set bits of each word."""
    halves = _SET_OF_16[np.ascontiguousarray(words).view(np.uint16)]
    per_word: Integers = halves.reshape(-1, 4).sum(axis=1, dtype=np.int64)
    return per_word


def count(words: Words) -> int:
    return int(_SET_OF_16[np.ascontiguousarray(words).view(np.uint16)].sum(dtype=np.int64))


def run_count(words: Words) -> int:
    return count(_first_of_runs(words))


def runs(words: Words) -> tuple[Integers, Integers]:
    """Return the starts and the ends of all runs of set bits, ascending."""
    if not len(words):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    following = np.append(words[1:] << np.uint64(63), np.uint64(0))
    lasts = words & ~((words >> np.uint64(1)) | following)
    return members(_first_of_runs(words)), members(lasts) + 1


def of_ranges(starts: Integers, ends: Integers) -> Words:
    """Return words with the bits `[starts[i], ends[i])` set. The ranges may be unordered, adjacent and overlapping."""
    nonempty = starts < ends
    order = np.argsort(starts[nonempty], kind="stable")
    starts, ends = starts[nonempty][order], np.maximum.accumulate(ends[nonempty][order])
    if not len(starts):
        return NO_WORDS
    words = np.zeros(word_count(int(ends[-1])), dtype=np.uint64)
    firsts, lasts = starts >> 6, (ends - 1) >> 6
    heads = np.left_shift(np.uint64(_ONES), (starts & 63).astype(np.uint64))
    tails = np.right_shift(np.uint64(_ONES), (63 - ((ends - 1) & 63)).astype(np.uint64))
    within = firsts == lasts
    _put_masks(words, firsts, np.where(within, heads & tails, heads))
    _put_masks(words, lasts, np.where(within, np.uint64(0), tails))
    if not within.all():
        edges = np.zeros(len(words) + 1, dtype=np.int64)
        np.add.at(edges, firsts[~within] + 1, 1)
        np.add.at(edges, lasts[~within], -1)
        words[np.cumsum(edges[:-1]) > 0] = np.uint64(_ONES)
    return words


def members(words: Words) -> Integers:
    """Return the numbers of the set bits, ascending."""
    numbers: Integers = np.flatnonzero(flags(words))
    return numbers


def flags(words: Words) -> Flags:
    bits: Flags = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little").view(np.bool_)
    return bits


def of_flags(flagged: Flags) -> Words:
    """Return words whose bit `n` is `flagged[n]`. The last word is padded with zeros."""
    packed = np.packbits(flagged, bitorder="little")
    missing = -len(packed) % 8
    if missing:
        packed = np.append(packed, np.zeros(missing, dtype=np.uint8))
    words: Words = packed.view(np.uint64)
    return words


def next_clear(words: Words, start: int) -> int:
    """Return the first number at or after `start` whose bit is not set."""
    at = start >> 6
    if at >= len(words):
        return start
    first = int(words[at]) | ((1 << (start & 63)) - 1)
    if first != _ONES:
        return (at << 6) + _lowest_clear(first)
    open_words = np.flatnonzero(words[at + 1 :] != np.uint64(_ONES))
    if not len(open_words):
        return len(words) << 6
    found = at + 1 + int(open_words[0])
    return (found << 6) + _lowest_clear(int(words[found]))


def _lowest_clear(word: int) -> int:
    clear = ~word
    return (clear & -clear).bit_length() - 1


def _first_of_runs(words: Words) -> Words:
    if not len(words):
        return words
    before = np.append(np.uint64(0), words[:-1] >> np.uint64(63))
    firsts: Words = words & ~((words << np.uint64(1)) | before)
    return firsts


def _marked(numbers: Integers, bits: int) -> Flags:
    flagged = np.zeros(bits, dtype=np.bool_)
    flagged[numbers] = True
    return flagged


def _put_masks(words: Words, at: Integers, masks: Words) -> None:
    """Set the bits of `masks[i]` in word `at[i]`. `at` must be ascending and may repeat a word."""
    opens = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    words[at[opens]] |= np.bitwise_or.reduceat(masks, opens)
