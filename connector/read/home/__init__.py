"""Batch reads of a store in a bucket without its broker: the plan and the tasks."""
