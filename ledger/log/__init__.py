"""Managed ledger: append queue, writer, segments, snapshot, retention, de-duplication.

`append_queue` is group commit, `writer` writes and rolls over, `sync_pool` syncs. Readers use a `snapshot`.
"""
