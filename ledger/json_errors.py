"""Errors that a JSON decoder raises for text that it cannot decode: invalid JSON, or values nested too deeply."""

from __future__ import annotations

JSON_FAULTS = (ValueError, RecursionError)


def json_fault(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
