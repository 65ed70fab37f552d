"""Durable cursors: leases, mark-delete positions, individual acknowledgements, deliveries and redelivery.

The metadata have a record for each cursor. A large set of individual acknowledgements is stored in the cursor's own
ledger. docs/concepts.md explains these words.
"""
