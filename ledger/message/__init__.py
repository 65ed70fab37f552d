"""Bytes of entries and messages, as Pulsar's clients write them.

Pure: an entry in, its metadata and payload out, and the reverse. Payload schemas are in `schema`.
"""
