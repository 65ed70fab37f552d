"""Calls, reads and producers, from any process.

No module here imports the broker or the server core.
"""
