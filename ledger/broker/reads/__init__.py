"""Read path of the broker: blocks from the cache, from local files or from object storage, and prefetching.

Readers on the broker's host map blocks from files or from shared memory. The broker sends blocks to
other readers. The page docs/concepts.md explains *map* and *page cache*.
"""
