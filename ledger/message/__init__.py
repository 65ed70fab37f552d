"""Bytes of entries and messages, in the formats of Pulsar's clients.

The functions decode an entry into metadata and payload, or encode metadata and payload as an entry. All functions are
pure. The folder `schema` decodes payloads by their schema.
"""
