"""Managed ledger: append queue, writer, segments, snapshot, retention, de-duplication.

`append_queue` groups appends, `writer` writes them to segment files, `sync_pool` syncs. Readers use a `snapshot`.
"""
