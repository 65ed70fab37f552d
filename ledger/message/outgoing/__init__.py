"""Messages of a producer before they become entries: checks, metadata, and division into chunks.

Batches gather in `open_batch`, and `ledger.message.batch_encoder` encodes them. The page docs/concepts.md explains the
words entry and chunk.
"""
