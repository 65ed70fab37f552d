"""Bytes of entries and messages, in the formats of Pulsar's clients.

The functions decode an entry into metadata and payload, or encode metadata and payload as an entry. All functions are
pure. The folder `schema` decodes payloads by their schema.

Words of the package
- *entry*: the unit of storage. It has a message, a batch of messages, a *chunk* (a part of a large message), or rows.
- *stamp*: the bytes that the broker puts before an entry, with the time and the row number.
- *tombstone*: a message without a value. *Marker*: an entry without messages, for example at the end of a transaction.
- *varint*: Protobuf's form of a number, in one to ten bytes (`varints`).
- *tag*: the byte before a field of a Protobuf message, which has the field's number and type.
- *u32*, *i32*, *u64*: a whole number of 32 or 64 bits, unsigned (u) or signed (i).
- *word*: eight bytes that are processed together, as one number.
- *magic* bytes: fixed first bytes, by which a reader recognizes a format.
"""
