"""Interface and policy of the offloader (PIP-17).

The package `offload` implements the interface, and is loaded by name.
"""
