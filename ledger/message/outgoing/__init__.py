"""Messages of a producer before they become entries: checks, metadata, and division into chunks.

`ledger.message.batch_encoder` encodes batches of messages.
"""
