"""SQLite file of the metadata, and the checks that it is complete and undamaged.

The *epoch* is a number in the file that each new broker raises. Each transaction compares the epoch, so an earlier
broker can change nothing. Records have checksums. A second file has the number of commits, which reveals lost commits.

Words of the package, as in SQLite
- *write-ahead log*, *WAL*, SQLite's *log*: a file to which SQLite writes commits first. SQLite later moves the commits
  into the main file. It is not the log of a ledger, nor the log of a store in a bucket.
- *savepoint*: a place in a transaction. A rollback to the savepoint undoes only the later changes.
- *query*: a query in SQL, not a streaming query of Spark.
- *trigger*: statements that SQLite runs at each change of a table. It is not a trigger of Spark.
- *migrate*: convert a file of an earlier format to the present format.
"""
