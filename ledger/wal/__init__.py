"""Write-ahead log of a store in a bucket: objects, manifest, fence, writer, reader.

The package knows nothing of ledgers. The design is in docs/decisions/bucket-store.md.

Words of the package, as in docs/concepts.md
- *slot*: the place of one number in the log. It has at most one log object.
- *window*: the number of slots after the lowest unacknowledged number that a broker may use at the same time.
- *take-over*: a new broker, the *taker*, replaces the earlier one. It raises the *epoch*, a number in the manifest.
- *claim*: an empty object that a taker puts into a slot, so that a late put of the earlier broker fails there.
- *void*: written by an earlier broker after the taker's first object. Readers skip a void object.
- *live*: still needed by the next broker. Objects below the first live number are deleted.
"""
