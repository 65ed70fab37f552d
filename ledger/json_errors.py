"""Errors of JSON decoders, which raise one of two kinds for foreign text."""

from __future__ import annotations

JSON_FAULTS = (ValueError, RecursionError)


def json_fault(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
