"""Client of a broker: calls, reads and producers.

No module here imports the broker or the modules that only the broker uses.
"""
