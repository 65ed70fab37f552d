"""Sealed segments in object storage, in the format of Pulsar's tiered storage, and reads of published Delta tables."""
