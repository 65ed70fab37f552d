"""The broker's read path through its cache.

Local and offloaded blocks, shared memory for readers on this host, prefetching.
"""
