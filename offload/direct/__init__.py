"""Direct segments: segments whose data object a task of a sink has put before the commit.

The stamps in such an object are provisional. `reader` writes the real ones into the copies that it returns.
`data_object` reads a whole object without an index. `upload` writes an object, for a task and for the broker.
`store_objects` are the requests of the broker.
"""
