"""Server process of a store, over Arrow Flight.

`main` starts the process. `actions` handles the calls, `server` the Flight streams, and `append_socket` the streams of
producers on this host. The read path is in `reads`.
"""
