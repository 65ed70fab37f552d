"""SQLite file of the metadata, and the checks that it is complete and undamaged.

The *epoch* is a number in the file that each new broker raises. Each transaction compares the epoch, so an earlier
broker can change nothing. Records have checksums. A second file has the number of commits, which reveals lost commits.
"""
