"""Batch reads of a store in a bucket without its broker: `scan` plans a read, `task` reads rows from objects."""
