"""Conversion of parsed entries to Arrow columns: values, metadata columns, and whole messages from chunks.

Pure functions, without files, brokers and clocks. An *entry* is the unit of storage. A *chunk* is a part of a message
that is too large for one entry.
"""
