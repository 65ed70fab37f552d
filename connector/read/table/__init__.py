"""Reads of a published table and of the entries after it: batch reads, streams, tasks.

Rows up to the end of the table are read from its files. Later rows are read from the ledger or the bucket.
"""
