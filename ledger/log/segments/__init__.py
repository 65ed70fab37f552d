"""Segments of one managed ledger: the sealed segments, and the list that the metadata has of all segments.

`segment_list` opens, seals, offloads and trims. `committed_batches` knows the batches whose runs the segments contain.
"""
