"""Segment file: format, index, writer, reader, recovery after a crash, verification.

One file contains one segment, which Pulsar calls a ledger. A segment that is complete is sealed, and never changes
again. A sealed file is byte for byte the object that an offload copies to object storage.

Words of the package, beside those of docs/concepts.md
- *frame*: an entry with its length and its id before it. *Block*: a part of the file with whole frames.
- *stamp*: the bytes before an entry. They contain the time at which the broker wrote the entry, and its row number.
- *sidecar*: the index file `<id>.index` beside a segment. A *row of the sidecar* is 32 bytes about one entry.
- *acknowledged end*: the end of the entries that readers may see.
- *magic*: fixed bytes that identify a format.
- `u32`, `i64`: integers of 4 bytes without a sign, and of 8 bytes with a sign. A *varint* has 7 bits in each byte.
"""
