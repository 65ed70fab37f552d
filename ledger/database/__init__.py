"""SQLite file of the metadata, and the proof that the file is whole.

Transactions compare the store's epoch (fencing). Records carry checksums. Commits are counted beside the file.
"""
