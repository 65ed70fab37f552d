"""Displays for notebooks and terminals: the chart of a running query, its progress bar, and the plan of a read.

A display changes neither a query nor a store.
"""
