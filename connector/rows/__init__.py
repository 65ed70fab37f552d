"""Conversion of entries to record batches with metadata columns.

Only `dead_letters` calls a broker: it appends rows that cannot be decoded to another ledger.
"""
