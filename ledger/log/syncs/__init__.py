"""Syncs of the segment files of many logs: which thread syncs a file, and when its log learns the end of the sync.

`job` states what a log submits. `pool` gives a lone job to a thread, and all others to the `loop`.
"""
