"""Benchmarks: each module compares the project with a base in one run, by `make bench NAME=module`."""
