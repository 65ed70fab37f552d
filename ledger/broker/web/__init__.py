"""HTTP service of a broker: metrics, health and the status page. It reads and changes nothing."""
