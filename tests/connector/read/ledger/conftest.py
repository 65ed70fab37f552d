"""Fixture of a ledger in a store that the tests of a file share (`tests.rigs.explicit`)."""

from __future__ import annotations

from tests.rigs.explicit import empty, orders, shared

__all__ = ["empty", "orders", "shared"]
