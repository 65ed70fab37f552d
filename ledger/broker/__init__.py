"""Broker: the process that owns a store and serves its ledgers over Arrow Flight.

`main` starts the process. `server` receives the calls, `actions` carries them out, and `append_socket` receives the
entries of producers on this host. `reads` serves blocks through the cache, `web` is the HTTP service, and `telemetry`
formats and sends the metrics.

Words of the package, beside those of docs/concepts.md
- *file descriptor*: the number of an open file or socket in a process. The system limits their count.
- *Unix socket*: a socket that is named by a file, so that only processes of the same host can connect to it.
- *private socket*: the broker's Unix socket for clients that can open the store directory.
"""
