"""Write-ahead log of a store in a bucket.

A broker writes each change of the store to the log before it acknowledges the change. The log consists of numbered
objects in the bucket. The package knows nothing of ledgers. The design is in docs/decisions/bucket-store.md.

Words of the package, as in docs/concepts.md
- *log object*: one object of the log. Its *number* is its place in the log, counted from 0 without gaps.
- *slot*: the place of one number in the log. A slot is empty or has one log object.
- *manifest*: the object that names the broker of the store. It is the only object that is ever replaced.
- *acknowledged*: certainly stored, and stored while this broker owned the store (`fence` has the exact rule).
- *window*: the number of slots that a broker may use at the same time. They begin at the lowest unacknowledged number.
- *take-over*: a new broker, the *taker*, replaces the earlier broker. It raises the *epoch*, a number in the manifest.
- *claim*: an empty object that a taker puts into a slot, so that a late put of the earlier broker fails there.
- *void*: written by an earlier broker into a slot after the taker's first claim. Readers skip a void object.
- *secret*: an object with the token and the certificate by which clients connect to the broker.
- *live*: still needed by the next broker. The *first live number* is the number of the oldest live object.
- *batch*: changes that become visible in one step. This word does not mean a batch of Spark.
- *part*: a piece of a batch in one log object.
"""
