"""Messages of a producer on their way into entries: their checks, their metadata, and their division into chunks.

Batches of messages are encoded in `ledger.message.batch_encoder`.
"""
