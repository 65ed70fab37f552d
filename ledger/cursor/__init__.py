"""Durable cursors: leases, mark-delete positions, individual acknowledgements, deliveries and redelivery.

State is kept in a cursor's own ledger and in the metadata.
"""
