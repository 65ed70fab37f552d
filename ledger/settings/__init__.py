"""Settings of the broker, declared once.

A number has a unit, a range and a reason, a text a kind and a reason. `broker` has all settings, reads them from a file
and prints conf/broker.toml.
"""
