"""Broker: the process that owns a store and serves its ledgers over Arrow Flight.

Arrow Flight is a protocol for calls and for streams of Arrow's record batches, based on gRPC.

`main` starts the process. `server` receives the calls, `actions` carries them out, and `append_socket` receives the
entries of producers on this host. `reads` serves blocks through the cache, `web` is the HTTP service, and `telemetry`
formats and sends the metrics.
"""
