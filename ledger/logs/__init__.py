"""Structured logs: lines of JSON. Every line about a batch of a query has the id of the batch, in every process.

Broker and connector log the same way. The modules import neither Spark nor the protocol.
"""
