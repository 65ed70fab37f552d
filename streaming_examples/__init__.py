"""Examples: the demo and the notebooks, each a module for `python -m`. `acts` has the acts of the demo."""
