"""Plans of a published table and of the entries behind it: a scan, a stream, its tasks.

Rows up to the table's end come from its files, later ones from the log or the bucket.
"""
