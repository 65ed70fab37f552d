"""Spark's readers, and the parts that all reads share: offsets, bounds, limits, progress.

A planner decides on the driver what each task reads. The planners of ledgers, of buckets, of stores in a bucket
without their broker, and of published tables are in `ledger`, `bucket`, `home` and `table`.
"""
