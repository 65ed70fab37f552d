"""Store: one directory of many managed ledgers, and its background tasks.

Partitions, policies, commits over several ledgers, offload runs, maintenance.
"""
