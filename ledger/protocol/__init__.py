"""Messages between clients and the broker: data only.

`actions` lists every action with its request and its reply; the other modules hold the messages, by subject.
"""
