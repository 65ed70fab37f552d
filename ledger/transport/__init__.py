"""Transport between client and broker: everything below the messages of the protocol.

Discovery of a broker, tokens, conversion of errors, and shared memory on one host. The protocol is Arrow Flight: calls
and streams over gRPC, a library for remote calls.
"""
