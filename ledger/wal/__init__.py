"""Write-ahead log of a store in a bucket: objects, manifest, fence, writer, reader.

The package knows nothing of ledgers. The design is in docs/decisions/bucket-store.md.
"""
