"""Records of a store: managed ledgers, segments, runs, sequence ids and schemas in `records`, all others in modules.

A change is a compare-and-set in one transaction of `ledger.database`. Only `unwanted_files` deletes files of segments;
a segment's writer removes only a file that it failed to create.
"""
