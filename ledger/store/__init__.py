"""One directory of many managed ledgers, and what runs in the background.

Partitions, policies, commits over several ledgers, offload runs, maintenance.
"""
