"""Examples: the notebooks, and the demo (`python -m streaming_examples.demo`), whose parts are in `acts`."""
