"""HTTP service of a broker: metrics, health and the status page. It returns no rows and changes nothing."""
