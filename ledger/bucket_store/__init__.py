"""Store whose home is a bucket: built from the write-ahead log, opened as any store, collected in the background.

`home` opens a store, `creation` creates a store, `builder` builds the local directory, and `collector` limits the size
of the write-ahead log.

Words of the package, as in docs/concepts.md
- *write-ahead log*: numbered objects in the bucket (*log objects*), which contain all changes of the store in order.
- *record*: a row of the store's metadata, which describes a ledger, a segment or a cursor.
- *snapshot*: an object with all records at one time.
- *manifest*: the object that names the broker of the store, the newest snapshot and the first live number.
- *live*: still needed to build the store. The *first live number* is the number of the oldest live log object.
- *epoch*: a number in the manifest. Each new broker raises it, and an earlier broker then acknowledges nothing more.
- *carry*: write the bytes of an open segment to the log again, so that its old objects are not live any more.
"""
