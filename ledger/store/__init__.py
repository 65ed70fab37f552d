"""Store: one directory of many managed ledgers, and the work that concerns several of them.

This work is: partitions, policies, commits to several ledgers, offloads, background tasks and repair. In the code,
`ledger_id` is the id of a segment (a file of a ledger), as in Pulsar.
"""
