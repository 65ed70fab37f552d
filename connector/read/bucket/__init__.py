"""Reads of offloaded ledgers in a bucket, without a broker: batch reads, streams, tasks, listing."""
