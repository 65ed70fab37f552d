"""Reads of a published Delta table: its versions, its rows, and the last published segment of each log.

`commit_metadata` is the format that publisher and reader share.
"""
