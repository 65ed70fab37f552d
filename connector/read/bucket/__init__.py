"""Plans of a bucket: a scan, a stream, its tasks.

Asks no broker.
"""
