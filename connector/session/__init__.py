"""Sessions of Spark: their settings, the listener that acknowledges committed batches, and a broker for a cluster."""
