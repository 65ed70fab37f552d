"""Reads of offloaded ledgers in a bucket, without a broker: bounded read, stream, tasks, listing."""
