"""Copies of sealed segments in object storage, in the format of Pulsar's tiered storage; reads of published Delta
tables.

A segment is one file of a ledger. A sealed segment never changes. docs/concepts.md explains the other words.
"""
