"""Sets of positions, and their encoding as Pulsar's `PositionInfo` (PIP-381).

All functions are pure: they use numpy arrays and bytes, and no files or clocks. In this package a *ledger* means a
segment, as in Pulsar. PIP-381 is Pulsar's proposal for large states of cursors.
"""
