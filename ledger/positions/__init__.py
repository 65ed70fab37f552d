"""Sets of positions, and Pulsar's PositionInfo of them (PIP-381).

Pure: numpy words and bytes, no file and no clock.
"""
