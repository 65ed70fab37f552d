"""Entry cache of the broker. Every read of the broker passes through the cache. Eviction policies are in `eviction`.

Words of the package
- *block*: entries that were appended or read together. Memory is allocated and freed for whole blocks.
- *range*: consecutive cached entries of one block. A policy evicts whole ranges.
- *reader*: a subscription with a running query, or a query without a subscription.
- *expected reads* of a range: the readers that still have to read an entry of the range.
- *page cache*: the memory in which the operating system keeps parts of files that were read or written.
"""
