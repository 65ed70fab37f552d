"""Structured logs: lines of JSON, and the id of a batch that each line of its steps has, in any process.

Broker and connector log the same way. Nothing here knows Spark or the protocol.
"""
