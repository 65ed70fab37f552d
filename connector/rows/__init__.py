"""Entries into record batches, and what their rows carry beside their columns.

Only `dead_letters` asks a broker: rows that cannot be decoded are appended to another ledger.
"""
