"""Records of a store: managed ledgers, their segments, runs, sequence ids and schemas in `records`, others in modules.

A change is a compare-and-set in one transaction of `ledger.database`. `unwanted_files` alone deletes files of ledgers;
a segment's writer removes only a file that it failed to create.
"""
