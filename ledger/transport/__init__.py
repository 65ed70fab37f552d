"""Transport between client and broker, below the protocol.

Discovery of a broker, tokens, errors on the wire, shared memory on one host.
"""
