"""Segments of one managed ledger: the open segment, the sealed segments, and the list that the metadata has of them.

`segment_list` opens, seals, offloads and trims. `committed_batches` knows the batches whose runs the segments contain.
"""
