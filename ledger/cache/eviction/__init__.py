"""Eviction policies of the cache.

`policy` is their interface. `registry` finds a policy by its name in the settings.
"""
