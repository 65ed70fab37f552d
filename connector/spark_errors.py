"""Short tracebacks for the errors that Spark shows: a LedgerError has one frame, no cause and no context.

Spark copies the whole traceback of an error into its message. A user of this package needs only the code, the text and
the hint of a LedgerError. So this module removes the traceback from a LedgerError, and logs it at level DEBUG. Any
other error is unexpected, and keeps its traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from pyspark_ledger.ledger.errors import LedgerError

_METHODS = frozenset(
    {
        "schema", "reader", "streamReader", "writer", "streamWriter",  # of the data source
        "__init__", "partitions", "read", "initialOffset", "latestOffset", "reportLatestOffset", "getDefaultReadLimit",
        "prepareForTriggerAvailableNow", "commit", "stop", "write", "abort",
    }
)  # fmt: skip
_log = logging.getLogger(__name__)
_Class = TypeVar("_Class")


def plain_errors(cls: type[_Class]) -> type[_Class]:
    """Wrap all methods of a class that Spark calls, so that their LedgerErrors have short tracebacks."""
    for name in _METHODS & vars(cls).keys():
        method = vars(cls)[name]
        setattr(cls, name, _wrap_iterator(method) if name == "read" else _wrap_call(method))
    return cls


def _wrap_call(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except LedgerError as error:
            raise without_traceback(error) from None

    return call


def _wrap_iterator(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **kwargs)
        except LedgerError as error:
            raise without_traceback(error) from None

    return call


def without_traceback(error: LedgerError) -> LedgerError:
    """Return the error without traceback, cause and context."""
    _log.debug("%s", error, exc_info=error)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
