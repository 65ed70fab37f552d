"""Conversion of parsed entries to Arrow columns: values, metadata columns, and whole messages from chunks.

The functions use no files, brokers or clocks. An *entry* is the unit of storage. A *chunk* is a part of a message that
is too large for one entry. A *varint* is Protobuf's integer of variable length: one byte or more.
"""
