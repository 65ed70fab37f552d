"""Displays for notebooks and terminals: the chart of a running query, its catch-up, and the plan of a read.

Drawing is pure. A display only reads a query, and makes only calls of a reader to a broker.
"""
