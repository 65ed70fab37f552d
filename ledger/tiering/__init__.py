"""The offloader's interface and policy (PIP-17).

The implementation is the package `offload`, loaded by name.
"""
