"""Eviction policies of the cache, one module each.

`policy` is their interface, `registry` finds one by its name in the settings.
"""
