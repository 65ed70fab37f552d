"""The entry cache of the broker: blocks, readers, expected reads.

Every read of the broker passes through it. Policies that choose what to evict are in `eviction`.
"""
