"""Messages between clients and the broker. The classes have fields and no behaviour.

`actions` lists every action with its request and its reply. Each other module defines the messages of one subject.
"""
