"""Durable cursors: leases, mark-delete positions, individual acknowledgements, deliveries and redelivery.

A *cursor* is the durable position of one reader in one ledger. All entries up to its *mark-delete position* are
acknowledged. *Individual acknowledgements* are entries and rows after this position. The metadata have a record for
each cursor. A large set of individual acknowledgements is stored in a file of its own, the *cursor's log*.
*Outstanding* rows were delivered and are not acknowledged. A *lease* is the right of one query to use a cursor.
"""
