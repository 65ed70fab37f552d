"""Reads of offloaded topics in a bucket, without a broker.

The package lists the objects of Pulsar or of this project, plans reads, and fetches entries.
"""
