"""Sealed ledgers in object storage, in the format of Pulsar's tiered storage."""
