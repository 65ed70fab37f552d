"""Store whose home is a bucket: built from the write-ahead log, opened as any store, collected in the background.

`home` opens a store, `creation` makes one, `builder` builds the local directory, `collector` bounds the log.
"""
