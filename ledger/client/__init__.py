"""Calls, reads and producers, from any process.

Nothing here imports the broker or the server core.
"""
