"""Examples: each is a module for `python -m`. Their data are an installed package."""
