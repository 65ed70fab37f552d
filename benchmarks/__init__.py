"""Benchmarks. Each module compares the project with a base in one run: `make bench NAME=module`.

Words of the docstrings
- *Ours*: the project's code. *Base*: the code or system with which it is compared. `benchmarks.harness` runs both in
  turns.
- *Ratio*: by default our speed divided by the base's speed. "The ratio is of times" means: our time divided by the
  base's time.
- *Floor*: a program that does only the part of our work that no implementation can omit.
- *Round*: one measurement of both sides. *Untimed*: done in a round, but not measured.
- *In flight*: sent, and not acknowledged yet.
- *noop*: Spark's sink that discards all rows. *`AvailableNow`*: Spark's trigger that reads all present rows and ends.
- *Backlog*: rows that a query has not read. *Catch-up*: a query reads a backlog. *Tail*: a query reads new rows as
  they arrive.
- *SeaweedFS*: an S3 server, which runs on this host in all benchmarks of object storage.
- *`triggerExecution`*: the time of one batch in Spark's progress report.
- *Flights*: a public data set, three million rows about flights of airlines. Its values repeat.

docs/concepts.md explains entry, segment, sidecar, cursor and the other words of the project.
"""
