"""Managed ledger: append queue, writer, segments, snapshot, retention, de-duplication.

`groups` decides what is written and synced together. `append_queue` drives two stages: `writer` writes groups to
segment files, and `sync_pool` makes the files durable. `segments` has the list of all segments.
Readers use a `snapshot`. The contract "inside the log" in pyproject.toml orders these modules.

Words of the package, as in docs/concepts.md
- *segment*: one file of a log. The last segment is open for appends. All others are sealed and never change.
- *entry*: one append, with one or more rows.
- *sync*: the call that makes written bytes durable. In a store in a bucket, a sync puts the bytes into an object.
- *group*: appends that are written together. After their sync they are acknowledged together.
- *acknowledged end*: the end of the last entry that the broker has acknowledged to its producer.
- *snapshot*: an immutable view of all acknowledged entries of a log. Each change of the log creates a new snapshot, and
  *publishes* it: from then on readers use the new snapshot.
- *stamp*: the bytes before an entry. They contain the time at which the broker stored the entry, and its row number.
- *staged part*: the file that one Spark task writes for one ledger. Readers do not see it before the commit.
- *run*: the entries of one committed batch of a Spark query. A *marker*, an entry without rows, ends a run.
- *rollover*: the broker seals the open segment, and opens the next segment. *Trim*: retention deletes segments.
- *list*: the list of a log's segments in the metadata. A segment is *listed* when it is in this list.
- *pool*: the threads that sync the files of all logs of the store (`sync_pool`).
- *claim*: the sequence ids of an append in flight, in a ledger with de-duplication.
- `ledger_id` is the id of a segment, as in Pulsar.
- *recovery*: after a crash, the next broker reads the open segment, keeps its sound entries and seals the segment.
- *epoch*: a number that rises with each start of a broker of the store. A broker that finds a higher epoch has lost the
  store to another broker (it is *fenced*).
- *direct segment*: a sealed segment whose data object a Spark task has put into the bucket, without a local file.
"""
