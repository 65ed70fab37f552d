"""Bytes of entries and messages, in the formats of Pulsar's clients.

All functions are pure: they decode an entry into metadata and payload, and encode the reverse. Payload schemas are in
`schema`.
"""
