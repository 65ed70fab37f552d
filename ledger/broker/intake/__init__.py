"""Bounds of the memory that clients can take before the broker has checked their calls.

gRPC receives a whole message before the broker's code runs, and Flight offers no limit for its size. So the broker
watches its connections (`connection_guard`), and returns memory after a burst (`freed_memory`).
"""
