"""Twin of the Python API for asyncio: the same names and arguments, over the same calls.

A *call* of this package is one call of `ledger.api` in a thread of its store. A *loop* waits without a thread.
"""
