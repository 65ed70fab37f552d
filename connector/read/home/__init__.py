"""Reads of a store in a bucket without its broker.

`scan` plans a batch read, `stream` the batches of a stream, and `task` reads rows from objects.
"""
