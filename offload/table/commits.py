"""What the commits of a Delta table say of themselves: who published which ledger, and what took rows away since.

    _delta_log/<version, 20 digits>.json     lines of JSON; one of them is {"commitInfo": {...}}

Rules
- The commits of one version are looked at from the newest back, and no further than somebody has to know. They are
  read from their files: what `deltalake` lists as the history is of the newest version, whichever was opened.
- A segment's commit says up to which version its publisher had looked for changes by others. What came in between is
  looked at here; a commit of an earlier release does not say it, and ends the search.
- A commit whose file was cleaned away, or lies a thousand commits back, is not known, and nothing is concluded.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark_ledger.ledger.errors import Corrupt, NotFound
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.offload.table.table_address import TableAddress

_COMMITS_MOST = 1000
_COMMIT_BYTES_MOST = 512 * 1024 * 1024


class TableCommits:
    """The commits up to one version; those that were looked at are kept."""

    def __init__(self, address: TableAddress, version: int) -> None:
        self._address = address
        self._next = version
        self._known: list[tuple[int, dict[str, Any]]] = []
        self._version = version

    def find_removal(self, incarnation: str) -> str:
        """What took rows of a log away wholesale and no publisher of it has looked at; nothing when nothing did."""
        number, looked = 0, -1
        while number < _COMMITS_MOST and self._look(number):
            version, said = self._known[number]
            if version <= looked:
                break
            looked = max(looked, _looked_up_to(version, said, incarnation))
            undone = "" if version <= looked else _undoing(version, said)
            if undone:
                return undone
            number += 1
        return ""

    def _look(self, number: int) -> bool:
        """Whether that commit is known, counted back from the newest."""
        while len(self._known) <= number and self._next >= 0:
            try:
                data = self._address.read(f"_delta_log/{self._next:020}.json", _COMMIT_BYTES_MOST)
            except NotFound:
                self._next = -1
            else:
                self._known.append(
                    (self._next, _commit_info(data, f"version {self._next} of {self._address.location}"))
                )
                self._next -= 1
        return number < len(self._known)


def _commit_info(data: bytes, where: str) -> dict[str, Any]:
    for line in data.splitlines():
        if line.startswith(b'{"commitInfo"'):
            try:
                said = json.loads(line)["commitInfo"]
            except JSON_FAULTS as wrong:
                raise Corrupt(f"{where} is no JSON: {json_fault(wrong)}") from wrong
            return said if isinstance(said, dict) else {}
    return {}


def _looked_up_to(version: int, said: dict[str, Any], incarnation: str) -> int:
    """Up to which version whoever published a segment of this log had looked; -1 where the commit is no such."""
    try:
        told = json.loads(said.get("userMetadata") or "null")
        if told["incarnation"] == incarnation and told["segment"] >= 0:
            return int(told.get("after", version))
    except (*JSON_FAULTS, TypeError, KeyError):
        pass
    return -1


def _undoing(version: int, said: dict[str, Any]) -> str:
    """What a commit is called that took rows away wholesale; nothing for any other."""
    operation = str(said.get("operation", ""))
    replaced = str((said.get("operationParameters") or {}).get("mode", "")).lower() == "overwrite"
    remade = operation.startswith(("CREATE OR REPLACE", "REPLACE TABLE"))
    if operation in {"RESTORE", "TRUNCATE"} or remade or (operation == "WRITE" and replaced):
        return f"{operation}{' (overwrite)' if replaced else ''} in version {version}"
    return ""
