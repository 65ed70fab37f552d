"""Reads of ledgers through their broker: batch reads, streams, tasks, subscriptions, deliveries."""
