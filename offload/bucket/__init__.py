"""Reads of offloaded topics in a bucket, without a broker.

A *topic* is a ledger of this project, or Pulsar's counterpart: a named log. A name in *Pulsar's spelling* has the form
`tenant/namespace/persistent/name`. The package lists the objects, plans reads, and fetches entries.
"""
