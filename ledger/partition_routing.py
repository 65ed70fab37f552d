"""Routing of messages to partitions, as in Pulsar's Java client. Pure functions.

Rules
- The partition of a key is the key's hash without the sign bit, modulo the number of partitions. The hash covers the
  key's text in the message. A key of bytes is written in base64.
- `murmur3_32` is MurmurHash3 x86 32 with seed 0 over UTF-8, which all of Pulsar's clients have. `java_string` is Java's
  `String.hashCode` over UTF-16.
- Messages without a key go to the partitions in turn, batch by batch (`ledger.client.partitioned_producer`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused

_MASK, _POSITIVE = 0xFFFFFFFF, 0x7FFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_U32 = npt.NDArray[np.uint32]
_KEY, _HASHING = "__key", "murmur3_32"


def murmur3_32(key: str) -> int:
    """Return the MurmurHash3 of a key without the sign bit, 31 bits."""
    data = key.encode()
    return int(_murmur3(np.frombuffer(data, np.uint8), np.array([0, len(data)], np.int64))[0])


def java_string(key: str) -> int:
    """Return the `String.hashCode` of a key without the sign bit, 31 bits."""
    units = np.frombuffer(key.encode("utf-16-le", "surrogatepass"), dtype="<u2")
    value = 0
    for unit in units.tolist():
        value = (31 * value + unit) & _MASK
    return value & _POSITIVE


HASHES: dict[str, Callable[[str], int]] = {"murmur3_32": murmur3_32, "java_string": java_string}


def require_hashing_scheme(name: str) -> None:
    if name not in HASHES:
        raise Refused(f"hashing scheme {name!r} is unknown", hint=f"Use one of {', '.join(HASHES)}")


def partition_for_key(key: str | bytes, partitions: int, hashing_scheme: str) -> int:
    text = key if isinstance(key, str) else base64.b64encode(key).decode("ascii")
    return HASHES[hashing_scheme](text) % partitions


def partitions_for_keys(keys: pa.Array, partitions: int, hashing_scheme: str) -> npt.NDArray[np.int64]:
    """Return the partition of each key, or -1 for null. Murmur3 of text keys is computed for all keys at once."""
    texts = keys
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        texts = pa.array([None if key is None else base64.b64encode(key).decode("ascii") for key in keys.to_pylist()])
    if hashing_scheme == "murmur3_32":
        column = texts.cast(pa.large_string())
        _, offsets, data = column.buffers()
        edges = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        octets = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        hashes = _murmur3(octets, edges).astype(np.int64)
    else:
        hash_of = HASHES[hashing_scheme]
        hashes = np.fromiter((hash_of(text or "") for text in texts.to_pylist()), np.int64, len(texts))
    return np.where(np.asarray(keys.is_valid()), hashes % partitions, -1)


def by_partition(rows: pa.RecordBatch, partitions: int, turn: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition. The key selects the partition as in Pulsar's clients.

    Rows without a key go to partition `turn` modulo the number of partitions.
    """
    turn %= partitions
    if _KEY not in rows.schema.names:
        yield turn, rows
        return
    chosen = partitions_for_keys(rows.column(_KEY), partitions, _HASHING)
    yield from grouped(rows, np.where(chosen < 0, turn, chosen))


def grouped(rows: pa.RecordBatch, codes: npt.NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each code with the rows that have it, in their order. `codes[i]` is the code of row `i`.

    If all rows have the same code, they are not copied.
    """
    if not len(codes):
        return
    first = int(codes[0])
    if (codes == first).all():
        yield first, rows
        return
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    sorted_rows = rows.take(pa.array(order))
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    for start, end in pairwise(edges):
        yield int(ordered[start]), sorted_rows.slice(start, end - start)


def _murmur3(data: npt.NDArray[np.uint8], edges: npt.NDArray[np.int64]) -> _U32:
    """Return the hash of each key `data[edges[i]:edges[i + 1]]`.

    A key is read as words of 4 bytes. Step n of the loop mixes word n of every key into the hash of this key. All
    numbers are modulo 2**32.
    """
    starts, sizes = edges[:-1], np.diff(edges)
    hashes = np.zeros(len(sizes), np.uint32)
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    with np.errstate(over="ignore"):
        for word in range(int(sizes.max(initial=0)) // 4):
            keys = np.flatnonzero(sizes >= 4 * (word + 1))
            mixed = hashes[keys] ^ _mixed(_word(padded, starts[keys] + 4 * word, 4))
            hashes[keys] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        tails = np.zeros(len(sizes), np.uint32)
        for rest in (1, 2, 3):
            keys = np.flatnonzero(sizes % 4 == rest)
            tails[keys] = _word(padded, starts[keys] + sizes[keys] - rest, rest)
        hashes ^= _mixed(tails)
        hashes ^= sizes.astype(np.uint32)
        hashes ^= hashes >> np.uint32(16)
        hashes *= np.uint32(0x85EBCA6B)
        hashes ^= hashes >> np.uint32(13)
        hashes *= np.uint32(0xC2B2AE35)
        hashes ^= hashes >> np.uint32(16)
    return hashes & np.uint32(_POSITIVE)


def _word(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], octets: int) -> _U32:
    word = np.zeros(len(at), np.uint32)
    for octet in range(octets):
        word |= data[at + octet].astype(np.uint32) << np.uint32(8 * octet)
    return word


def _mixed(word: _U32) -> _U32:
    return _rotated(word * np.uint32(_C1), 15) * np.uint32(_C2)


def _rotated(word: _U32, bits: int) -> _U32:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
