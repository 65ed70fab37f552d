"""Durable cursors: leases, mark-delete positions, individual acknowledgements, deliveries and redelivery.

A *cursor* is the durable position of one reader in one ledger. All entries up to its *mark-delete position* are
acknowledged. *Individual acknowledgements* are entries and rows after this position. The metadata have a record for
each cursor. Individual acknowledgements are stored in a file of their own, the *cursor's log*. A clean close moves a
small set into the record. *Outstanding* rows were delivered and are not acknowledged. A *lease* is the right of one
query to use a cursor.
"""
