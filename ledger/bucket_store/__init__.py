"""Store whose home is a bucket. Its local directory is a cache, which a broker builds from the bucket when it starts.

`home` opens a store, `creation` creates a store, and `builder` builds the local directory. `collector` deletes old
objects of the write-ahead log.

Words of the package, as in docs/concepts.md
- *write-ahead log*: numbered objects in the bucket (*log objects*), which contain all changes of the store in order.
- *batch*: a group of changes that becomes visible in one step. This word does not mean a batch of Spark.
- *record*: a row of the store's metadata, which describes a ledger, a segment or a cursor.
- *snapshot*: an object with all records at one time.
- *manifest*: the object that names the broker of the store, the newest snapshot and the first live number.
- *secret*: an object with a broker's token and certificate authority, for the broker's clients.
- *live*: still needed to build the store. The *first live number* is the number of the oldest live log object.
- *epoch*: a number in the manifest. Each new broker raises it, and an earlier broker then acknowledges nothing more.
- *carry*: write the bytes of an open segment to the log again, so that the log objects with the earlier copy can be
  deleted.
"""
