"""Sets of positions, and their encoding as Pulsar's `PositionInfo` (PIP-381).

Pure functions on numpy arrays and bytes, without files and clocks.
"""
