"""Examples that run: each is a module started with `python -m`, on data that comes installed."""
