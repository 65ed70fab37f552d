"""Pictures and texts of a store for notebooks and terminals, and progress bars.

A function is *pure* if its result depends only on its arguments. The functions that draw are pure: they call no broker.

`ledger.api` collects the values and passes them to these functions. `connector.display` draws queries and plans.
"""
