"""Conversion of entries to record batches for Spark, and of CSV and JSON lines to rows.

Two modules call a broker: `dead_letters` appends undecodable payloads to another ledger, and `text_files` appends the
rows of CSV and JSON lines.
"""
