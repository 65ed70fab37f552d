"""Benchmarks. Each module compares the project with a base in one run: `make bench NAME=module`."""
