"""Sessions of Spark: settings, listeners, a broker for a cluster.

`commit_listener` acknowledges what a query has committed.
"""
