"""Entry cache of the broker. Every read of the broker passes through the cache. Eviction policies are in `eviction`.

Words of the package, beside those of docs/concepts.md
- *block*: entries that were appended or read together. Memory is allocated and freed for whole blocks.
- *range*: consecutive cached entries of one block, a `span` in names of the code. A policy evicts whole ranges.
- *pool*: all blocks of one kind, with a limit of its own: blocks in memory, or blocks of local files.
- *reference*: a right to read the bytes of a block. The bytes stay valid until the reference is released.
- *reader*: a subscription with a running query, or a query without a subscription.
- *expected reads* of a range: the readers that still have to read an entry of the range.
"""
