"""Segment file: format, index, writer, reader, recovery of a torn tail, verification.

One file contains one segment (a ledger in Pulsar). A sealed file is byte for byte the data object of its offload.
"""
