"""HTTP service of a broker: metrics, health and the status page. It returns no rows.

It changes nothing, unless the admin requests for offloads are switched on.
"""
