"""Copies of sealed segments in object storage, in Pulsar's format, and reads of published Delta tables.

A segment is one file of a ledger. A sealed segment never changes. A published table is a Delta table with the rows of
sealed segments. docs/concepts.md explains the other words.
"""
