"""Pictures and texts of a store for notebooks and terminals, and progress bars. Drawing is pure and asks no broker.

`ledger.api` collects the values and passes them to these functions. `connector.display` draws queries and plans.
"""
