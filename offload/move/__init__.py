"""Move of a whole store between a directory and a bucket. docs/decisions/bucket-store.md has the order of all steps.

`into_bucket` moves a directory into a bucket, `into_directory` a bucket into a directory. `segments` copies the
segments, `records` changes a copy of the records. `arrival` puts the manifests, `arriving_directory` the files.
"""
