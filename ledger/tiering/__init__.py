"""Interface of the offloader, which copies sealed segments to object storage (PIP-17), and the choice of the segments.

A segment is a file of a ledger. The package `offload` implements the interface. The broker loads it by its name.
"""
