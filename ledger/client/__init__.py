"""Client of a broker: calls, reads and producers.

No module here imports the broker or the modules that only the broker uses.

Words of this package, beside those of docs/concepts.md
- *Flight* is Arrow Flight. `DoPut` is its call that sends record batches, `DoGet` the call that fetches them.
- *gRPC* is the protocol below Flight: it makes the connections between processes.
- *Shared memory* is memory that several processes of one host use together.
- To *fork* is to make a copy of a process. The copy is the *child*, the original is the *parent*.
- An entry is *in flight* if it was sent and is not acknowledged yet.
"""
