"""Conversion of entries to record batches with metadata columns, and of texts to rows.

Two modules call a broker. `dead_letters` appends rows that cannot be decoded to another ledger; `text_files` appends
the rows of CSV and JSON lines.
"""
