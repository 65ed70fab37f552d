"""Broker: the process that owns a store and serves its ledgers over Arrow Flight.

Arrow Flight is a protocol for calls and for streams of Arrow's record batches, based on gRPC.

`main` starts the process. `server` receives the calls, `actions` carries them out, and `append_socket` receives the
entries of producers on this host. `reads` serves blocks through the cache, `web` is the HTTP service, and `telemetry`
formats and sends the metrics.

Words of the package
- *fsync*, or *sync*: a call that returns when the bytes of a file are on the disk, not only in memory.
- *map*: read a file in place, as if it were a part of the process's memory, without a copy.
- *page cache*: the memory in which the operating system keeps parts of files that were read or written.
- *file descriptor*: the number of an open file or socket in a process. The system limits their count.
- *Unix socket*: a socket that is named by a file, so that only processes of the same host can connect to it.
- *private socket*: the broker's Unix socket for clients that can open the store directory.
- *loopback*: the address 127.0.0.1, which only processes of the same host can reach.
"""
