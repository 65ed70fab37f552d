"""Read path of the broker: blocks from the cache, from local files or from object storage, and prefetching.

Readers on the broker's host map blocks from files or from shared memory: they read the bytes in place, without a copy.
The broker sends blocks to other readers.

The system's *page cache* is the memory in which the operating system keeps parts of files that were read or written.
"""
