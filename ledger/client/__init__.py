"""Client of a broker: calls, reads and producers.

No module here imports the broker or the modules that only the broker uses.

Words of this package
- *Flight*, or Arrow Flight, is Apache Arrow's protocol for calls with *record batches*, tables of rows in memory.
  `DoPut` is the call that sends record batches, `DoGet` the call that fetches them.
- *gRPC* is the protocol below Flight: it makes the connections between processes.
- To *map* a file is to read its bytes as memory of the process, without a copy.
- *Shared memory* is memory that several processes of one host use together.
- To *fork* is to make a copy of a process. The copy is the *child*, the original is the *parent*.
- To *sync* is to write data to the device, so that they survive a loss of power.
- An entry is *in flight* if it was sent and is not acknowledged yet.
- A *token* is a secret text by which a client proves its rights.
"""
