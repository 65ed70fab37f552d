"""A published Delta table, read: one version, its rows, how far it is.

`commit_metadata` is the format that publisher and reader share.
"""
