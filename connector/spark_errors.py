"""The methods that Spark calls: an error of ours leaves them with one frame and without a chain.

Spark puts the whole traceback of an error into its own message. The code, the sentence and the hint say what is wrong;
frames of this package do not help a user. `connector.spark_errors` logs the whole traceback at level DEBUG.

Errors that are not ours keep their traceback: nobody foresaw them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from pyspark_ledger.ledger.errors import LedgerError

_METHODS = frozenset(
    {
        "schema", "reader", "streamReader", "writer", "streamWriter",  # of the source
        "__init__", "partitions", "read", "initialOffset", "latestOffset", "reportLatestOffset", "getDefaultReadLimit",
        "prepareForTriggerAvailableNow", "commit", "stop", "write", "abort",
    }
)  # fmt: skip
_log = logging.getLogger(__name__)
_Face = TypeVar("_Face")


def spark_face(face: type[_Face]) -> type[_Face]:
    """Wrap the methods of a class that Spark calls, as far as the class defines them."""
    for name in _METHODS & vars(face).keys():
        method = vars(face)[name]
        setattr(face, name, _iterating(method) if name == "read" else _calling(method))
    return face


def _calling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except LedgerError as error:
            raise bare(error) from None

    return call


def _iterating(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(method)
    def call(*given: Any, **named: Any) -> Iterator[Any]:
        try:
            yield from method(*given, **named)
        except LedgerError as error:
            raise bare(error) from None

    return call


def bare(error: LedgerError) -> LedgerError:
    """Return an error without frames and without the errors that led to it."""
    _log.debug("%s", error, exc_info=error)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
