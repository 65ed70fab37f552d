"""Messages of a producer before they become entries: checks, metadata, and division into chunks.

Batches gather in `open_batch`, and `ledger.message.batch_encoder` encodes them. An *entry* is the unit of storage: a
batch, a single message, or a *chunk*, a part of a large message.
"""
