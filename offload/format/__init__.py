"""Names and index objects of PIP-17.

Pure: bytes in, values out, and the reverse.
"""
