"""Entry cache of the broker: blocks, readers, expected reads.

Every read of the broker passes through the cache. Eviction policies are in `eviction`. The *expected reads* of an entry
are the readers that have not read it yet.
"""
