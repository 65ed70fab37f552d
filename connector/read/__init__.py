"""Spark's readers, and what every read shares: offsets, bounds, limits, progress.

Plans of a live ledger, a bucket and a published table are in `ledger`, `bucket` and `table`.
"""
