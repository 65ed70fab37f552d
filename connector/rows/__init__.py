"""Conversion of entries to record batches for Spark, and of files to rows.

A record batch is Arrow's object with some rows, stored by column.

Two modules call a broker: `dead_letters` appends undecodable payloads to another ledger, and `text_files` appends
rows of files.
"""
