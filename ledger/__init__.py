"""The log: managed ledgers, their cursors, and the broker that owns a store. Knows nothing of Spark."""
