"""Records of a store, in its metadata database.

`records` has managed ledgers, committed batches, sequence ids and schemas. Each other module has one kind of record. A
change compares the version of the changed record, in one transaction of `ledger.database`. Only `unwanted_files`
deletes files of segments. Exception: a writer that fails to create a segment removes its files.
"""
