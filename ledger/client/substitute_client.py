"""Substitute for a broker's client, which reads a store or a bucket without a broker. It refuses all other calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, TypeAlias, cast

import msgspec

from pyspark_ledger.ledger.client.kept_producer import KeptProducers
from pyspark_ledger.ledger.errors import Refused, closed_error
from pyspark_ledger.ledger.protocol.request import Reply, Request

Answers: TypeAlias = Mapping[type[Request[Any]], Callable[[Any], msgspec.Struct]]


class SubstituteClient:
    """Client that answers the requests of `answers`. `refused` and `hint` are the words of any other call's error."""

    refused: ClassVar[str]
    hint: ClassVar[str]

    def __init__(self, address: str, answers: Answers) -> None:
        self.address = address
        self.kept = KeptProducers()  # always empty, because calls that need a producer are refused
        self._answers = answers
        self._retired_with = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def __reduce__(self) -> NoReturn:
        message = f"{self!r} cannot be pickled: call open_read_only() in the other process"
        raise TypeError(message)

    def ask(self, request: Request[Reply], **_: object) -> Reply:
        """Return the reply to a request. Raises Refused for a request that the substitute cannot answer."""
        self._require_open()
        answer = self._answers.get(type(request))
        if answer is None:
            refused = self.refused.format(address=self.address)
            raise Refused(f"{refused}, {request.call.name!r} was called", hint=self.hint)
        return cast("Reply", answer(request))

    def retire(self, handle: str) -> None:
        """Refuse later calls and further blocks. The error names `handle`, the closed object."""
        self._retired_with = handle

    def _require_open(self) -> None:
        if self._retired_with:
            raise closed_error(self._retired_with)
