"""Sinks: batch and streaming writes, exactly-once commits, acknowledgements.

Tasks stage parts; `commit` makes them visible at once.
"""
