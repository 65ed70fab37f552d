"""Sets of positions, and Pulsar's PositionInfo of them (PIP-381).

Pure functions on numpy arrays and bytes, without files and clocks.
"""
