"""Metrics of a broker for monitors: the list of all metrics, their text for Prometheus, and their reference."""
