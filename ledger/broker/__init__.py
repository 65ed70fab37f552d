"""The server process of a store, over Arrow Flight.

`main` starts it, `actions` has every call, `server` the streams of Flight, `append_socket` those of producers on this
host; the read path is in `reads`.
"""
