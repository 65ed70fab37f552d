"""Move of a whole store from a directory into a bucket. docs/decisions/bucket-store.md has all steps in order.

`into_bucket` has the steps. `segments` copies the segments. `records` changes a copy of the records, the rows of the
store's metadata. `arrival` puts the manifests and log objects into the bucket.

The *manifest* is the object that makes a prefix of a bucket a store. During a move, it has a field `move` with a state.
The *nonce* is a random id in the manifest, which identifies the move. A ledger with *durability* `os` acknowledges an
append before the append is synced to the disk.
"""
