"""SQLite file of the metadata, and the checks that it is complete and undamaged.

Transactions compare the store's epoch, which fences an earlier broker. Records have checksums. A second file has the
number of commits.
"""
