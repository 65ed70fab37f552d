"""Sessions of Spark: settings, listeners, a broker for a cluster.

`commit_listener` acknowledges committed batches.
"""
