"""Store: one directory of many managed ledgers, and the work of its broker on all of them.

The package contains partitions, policies, commits to several ledgers, offloads, background tasks and repair.
"""
