"""Records of a store: managed ledgers, committed batches, sequence ids and schemas in `records`, others in own modules.

A change compares the record's version, in one transaction of `ledger.database`. Only `unwanted_files` deletes files of
segments. Exception: a writer that fails to create a segment removes its files.
"""
