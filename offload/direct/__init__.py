"""Direct segments: segments whose data object a Spark task of a sink has put into the bucket before the commit.

A *stamp* is the time and the row number that the broker gives an entry at the commit. So the stamps in such an object
are provisional. `reader` writes the real stamps into the copies that it returns. `data_object` reads a whole object
without an index. `ledger.transport.direct_upload` writes an object, for a task or for the broker.
"""
