"""Spark's readers, and the parts that all reads share: offsets, bounds, limits, progress.

Planners of ledgers, buckets and published tables are in `ledger`, `bucket` and `table`.
"""
