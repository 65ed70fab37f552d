"""The broker of a store and its clients, over Arrow Flight."""
