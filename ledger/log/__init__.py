"""Managed ledger: append queue, writer, segments, snapshot, retention, de-duplication.

`append_queue` groups appends, `writer` writes groups to segment files, and `syncs` syncs the files. `segments` has the
open segment and the list of all segments. Readers use a `snapshot`.

Words of the package, as in docs/concepts.md
- *segment*: one file of a log. The last segment is open for appends. All others are sealed and never change.
- *entry*: one append, with one or more rows.
- *group*: appends that are written together. After their sync they are acknowledged together.
- *acknowledged end*: the end of the last entry that the broker has acknowledged to its producer.
- *stamp*: the bytes before an entry with the time at which the broker stored it, and its row number.
- *staged part*: the file that one Spark task writes for one ledger. Readers do not see it before the commit.
- *run*: the entries of one committed batch of a Spark query. A *marker*, an entry without rows, ends a run.
- *rollover*: the broker seals the open segment; the next append creates a new one. *Trim*: retention deletes segments.
- *epoch*: a number that rises with each start of a broker of the store. By the epoch, a broker that was replaced learns
  that it has lost the store (it is *fenced*).
- *direct segment*: a sealed segment whose data object a Spark task has put into the bucket, without a local file.
"""
