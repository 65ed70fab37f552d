"""Reads of offloaded topics in a bucket, without a broker.

A topic is a ledger of this project or of Pulsar. The package lists the objects, plans reads, and fetches entries.
"""
