"""The SQLite file under the metadata, and the proof that the file is whole.

Transactions compare the store's epoch (fencing); records carry checksums; commits are counted beside the file.
"""
