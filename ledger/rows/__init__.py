"""Columns of messages and entries: groups of messages, metadata columns, whole messages from chunks.

Pure conversion of parsed entries, without files, brokers and clocks.
"""
