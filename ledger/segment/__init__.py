"""Segment file: format, index, writer, reader, recovery after a crash, verification.

One file contains one segment, which Pulsar calls a ledger. A segment that is complete is sealed, and never changes
again. A sealed file is byte for byte the object that an offload copies to object storage.
"""
