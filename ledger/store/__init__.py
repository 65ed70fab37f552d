"""Store: one directory of many managed ledgers, and its background tasks.

Partitions, policies, commits to several ledgers, scheduling of offloads, maintenance, repair.
"""
