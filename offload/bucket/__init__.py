"""Reads of offloaded topics in a bucket, without a broker.

A *topic* is a ledger of this project, or Pulsar's counterpart: a named log. The package lists the objects, plans reads,
and fetches entries.
"""
