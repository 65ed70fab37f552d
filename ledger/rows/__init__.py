"""Conversion of parsed entries to Arrow columns: values, metadata columns, and whole messages from chunks.

Pure functions, without files, brokers and clocks. The page docs/concepts.md explains the words entry and chunk.
"""
