"""Store: one directory of many managed ledgers, and the work that concerns several of them.

This work is: partitions, policies, commits to several ledgers, offloads, background tasks and repair.
"""
