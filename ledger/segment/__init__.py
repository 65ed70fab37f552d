"""Segment file: format, index, writer, reader, recovery of a torn tail, verification.

One file holds one Pulsar ledger. A sealed file is byte for byte the data object of its offload.
"""
