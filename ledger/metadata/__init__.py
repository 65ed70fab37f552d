"""Records of a store, in its metadata database, a SQLite file.

`records` has managed ledgers, committed batches, sequence ids and schemas. Each other module has one kind of record.
Each change is one transaction of `ledger.database`. It fails if the record has changed since it was read. Only
`unwanted_files` deletes files of segments. Exception: a writer that fails to create a segment removes its files.

In names of fields and functions, `ledger_id` is the id of a segment (a file of a ledger), as in Pulsar.
"""
