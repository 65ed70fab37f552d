"""Entry cache of the broker: blocks, readers, expected reads.

Every read of the broker passes through it. Eviction policies are in `eviction`.
"""
