"""Messages between clients and the broker. The classes have fields and no behaviour.

`actions` lists every action with its request and its reply. Each other module defines the messages of one subject.

Words of this package
- *Arrow Flight* is Apache Arrow's protocol for calls. Its calls `DoPut` and `DoGet` carry *record batches*, tables of
  rows in memory.
- To *map* a block is to read the bytes of its file as memory of the process, without a copy.
- A *token* is a secret text by which a client proves its rights.
- *CRC-32C* is a checksum of 32 bits.
- `most` and `least` are the upper and the lower 64 bits of an id of 128 bits.
- A *negative acknowledgement* (nack) is a reader's request to deliver rows again.
"""
