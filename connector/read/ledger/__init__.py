"""Plans of a live ledger: a scan, a stream, its tasks, its subscription.

Asks the broker.
"""
