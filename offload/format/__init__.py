"""Object names and index objects of PIP-17 (tiered storage).

Pure encoders and decoders.
"""
