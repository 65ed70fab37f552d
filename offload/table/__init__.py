"""Reads of a published Delta table: its versions, its rows, and the last published segment of each log.

A published table has the rows of sealed segments, which `connector.publish` copies to it. `commit_metadata` is the
format that publisher and reader share.
"""
