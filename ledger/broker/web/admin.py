"""Pulsar's admin requests for offloads (PIP-17). Off by default.

    PUT /admin/v2/persistent/TENANT/NAMESPACE/TOPIC/offload     {"ledgerId": 7, "entryId": 0}: offload what is before it
    GET /admin/v2/persistent/TENANT/NAMESPACE/TOPIC/offload     the status of the newest offload
    GET …/TOPIC/internalStats                                   the segments

Rules
- `pulsar-admin topics offload` asks for the segments first. It computes the message id of the PUT from their sizes.
- The address requires a token (`ledger.broker.web.address`). The rules of its TLS and loopback apply.
- The responses are Pulsar's: 204, or JSON. An error is `{"reason": …}` with Pulsar's status.
- A request changes nothing if this broker has lost the store.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import unquote_plus

import msgspec

from pyspark_ledger.ledger.broker.web.server import Answer, HttpRequest
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix, OffloadStatus
from pyspark_ledger.ledger.store.store import Store

_STATUS = {"idle": "NOT_RUN", "waiting": "RUNNING", "running": "RUNNING", "done": "SUCCESS"}
_ERRORS: dict[type[LedgerError], HTTPStatus] = {
    NotFound: HTTPStatus.NOT_FOUND,
    Refused: HTTPStatus.PRECONDITION_FAILED,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    Fenced: HTTPStatus.SERVICE_UNAVAILABLE,
}


class AdminMessageId(msgspec.Struct, frozen=True, rename="camel"):
    """Position as Pulsar's admin client writes it. `partitionIndex` is in the name of the topic already."""

    ledger_id: int
    entry_id: int
    partition_index: int = -1


class OffloadAdmin:
    """Admin requests of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def answer(self, request: HttpRequest) -> Answer:
        """Answer a request below `/admin/v2/`."""
        name, action = _topic_of(request.path)
        if action not in ("offload", "internalStats"):
            return _error(HTTPStatus.NOT_FOUND, "paths: /admin/v2/persistent/TENANT/NAMESPACE/TOPIC/offload")
        try:
            if action == "internalStats":
                return self._segments(name, request.method)
            if request.method != "PUT":
                return _json(_described(self._store.offloads.status(name)))
            return self._offload(name, request.body)
        except LedgerError as error:
            found = (status for kind, status in _ERRORS.items() if isinstance(error, kind))
            return _error(next(found, HTTPStatus.INTERNAL_SERVER_ERROR), str(error))

    def _segments(self, name: str, method: str) -> Answer:
        if method == "PUT":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED, "internalStats takes GET")
        found = self._store.ledger(name).describe()
        last = found.segments[-1:]
        # Pulsar's client replaces the size of the last segment by `currentLedgerSize`.
        return _json(
            {
                "numberOfEntries": found.entries,
                "totalSize": found.size_bytes,
                "currentLedgerEntries": sum(segment.entries for segment in last),
                "currentLedgerSize": sum(segment.size_bytes for segment in last),
                "ledgers": [
                    {
                        "ledgerId": one.ledger_id,
                        "entries": one.entries,
                        "size": one.size_bytes,
                        "offloaded": one.offloaded,
                    }
                    for one in found.segments
                ],
            }
        )

    def _offload(self, name: str, body: bytes) -> Answer:
        try:
            found = msgspec.json.decode(body, type=AdminMessageId)
        except JSON_FAULTS as wrong:
            return _error(HTTPStatus.BAD_REQUEST, f'expected {{"ledgerId": number, "entryId": number}}: {wrong}')
        self._store.require_ours()
        if self._store.offloads.status(name).state in ("waiting", "running"):
            return _error(HTTPStatus.CONFLICT, f"{name!r} is being offloaded already")
        self._store.offloads.offload(OffloadPrefix(name, Position(found.ledger_id, max(found.entry_id, 0))))
        return Answer(b"", status=HTTPStatus.NO_CONTENT)


def _topic_of(path: str) -> tuple[str, str]:
    """Return the topic of a path and the action. The action is empty for a path of another form."""
    parts = path.removeprefix("/admin/v2/").split("/")
    if len(parts) != 5 or parts[0] != "persistent":
        return "", ""
    return "persistent://" + "/".join(map(unquote_plus, parts[1:4])), parts[4]


def _described(status: OffloadStatus) -> dict[str, object]:
    first = status.first_left
    return {
        "status": _STATUS.get(status.state, "ERROR"),
        "lastError": status.failure,
        "firstUnoffloadedMessage": AdminMessageId(first.ledger_id, first.entry_id),
    }


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(msgspec.json.encode(value), status=status)


def _error(status: HTTPStatus, reason: str) -> Answer:
    return _json({"reason": reason}, status)
