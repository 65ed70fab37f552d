"""Segment file: format, index, writer, reader, recovery after a crash, verification.

One file contains one segment, which Pulsar calls a ledger. A segment that is complete is sealed, and never changes
again. A sealed file is byte for byte the object that an offload copies to object storage.

Words of the package
- *frame*: an entry with its length and its id before it. *Block*: a part of the file with whole frames.
- *stamp*: the bytes before an entry with the time at which the broker wrote the entry, and its row number.
- *sidecar*: the index file `<id>.index` beside a segment, with one row for each entry.
- *acknowledged end*: the end of the entries that readers may see.
"""
