"""The log: managed ledgers, their cursors, and the broker that owns a store. Independent of Spark."""
