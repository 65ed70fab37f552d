"""Bounds of the memory that clients can take before the broker's code has seen their messages.

gRPC receives a whole message before the broker's code runs, and Flight offers no limit for its size. So the broker
watches its connections (`connection_guard`), lets tasks announce large batches (`staged_batches`), and returns memory
after a burst (`freed_memory`).
"""
