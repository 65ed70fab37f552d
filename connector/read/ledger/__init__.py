"""Reads of ledgers through their broker: bounded read, stream, tasks, subscriptions, deliveries."""
