"""Spark's readers, and the parts that all reads share: offsets, bounds, limits, progress.

A planner decides on the driver what each task reads. Each kind of read has its own package:

    ledger    ledgers, through their broker
    bucket    offloaded topics in a bucket, without a broker
    home      a store in a bucket, without its broker
    table     published tables, and the rows after them
"""
