"""Messages between clients and the broker. The classes have fields and no behaviour.

`actions` lists every action with its request and its reply. Each other module defines the messages of one subject.

Words of this package, beside those of docs/concepts.md
- `DoPut` and `DoGet` are the calls of Arrow Flight that carry record batches.
- *CRC-32C* is a checksum of 32 bits.
- `most` and `least` are the upper and the lower 64 bits of an id of 128 bits.
- A *negative acknowledgement* (nack) is a reader's request to deliver rows again.
"""
