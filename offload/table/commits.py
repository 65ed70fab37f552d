"""Search of a Delta table's commits for an operation that removed many published rows at once.

Such operations are RESTORE, TRUNCATE, an overwrite, and the replacement of the table.

    _delta_log/<version, 20 digits>.json     lines of JSON; one of them is {"commitInfo": {...}}

Rules
- Commits are read backwards from the opened version, only as far as necessary. They are read from their files, because
  the library `deltalake` always lists the history of the newest version.
- The commit of a segment states the last version that its publisher has checked for changes of other programs. Only
  later commits are searched. The commit of a segment by an earlier release states no version, and ends the search.
- The search also ends at a commit file that was cleaned up, and after a thousand commits. Then no removal is reported.
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
    """Commits of a table up to the opened version. Each commit is read once."""

    def __init__(self, address: TableAddress, version: int) -> None:
        self._address = address
        self._next = version
        self._commit_infos: list[tuple[int, dict[str, Any]]] = []
        self._version = version

    def find_removal(self, incarnation: str) -> str:
        """Return operation and version of the newest removal that no publisher has checked. Empty if there is none."""
        number, reviewed = 0, -1
        while number < _COMMITS_MOST and self._load(number):
            version, info = self._commit_infos[number]
            if version <= reviewed:
                break
            reviewed = max(reviewed, _reviewed_version(version, info, incarnation))
            removal = "" if version <= reviewed else _removal_of(version, info)
            if removal:
                return removal
            number += 1
        return ""

    def _load(self, number: int) -> bool:
        """Load commit `number`, counted back from the opened version. Returns whether the commit exists."""
        while len(self._commit_infos) <= number and self._next >= 0:
            try:
                data = self._address.read(f"_delta_log/{self._next:020}.json", _COMMIT_BYTES_MOST)
            except NotFound:
                self._next = -1
            else:
                self._commit_infos.append(
                    (self._next, _commit_info(data, f"version {self._next} of {self._address.location}"))
                )
                self._next -= 1
        return number < len(self._commit_infos)


def _commit_info(data: bytes, where: str) -> dict[str, Any]:
    for line in data.splitlines():
        if line.startswith(b'{"commitInfo"'):
            try:
                info = json.loads(line)["commitInfo"]
            except JSON_FAULTS as wrong:
                raise Corrupt(f"{where} is no JSON: {json_fault(wrong)}") from wrong
            return info if isinstance(info, dict) else {}
    return {}


def _reviewed_version(version: int, info: dict[str, Any], incarnation: str) -> int:
    """Return the version up to which this commit's publisher checked the commits of other programs.

    Returns -1 if the commit did not publish a segment of this log.
    """
    try:
        publication = json.loads(info.get("userMetadata") or "null")
        if publication["incarnation"] == incarnation and publication["segment"] >= 0:
            return int(publication.get("after", version))
    except (*JSON_FAULTS, TypeError, KeyError):
        pass
    return -1


def _removal_of(version: int, info: dict[str, Any]) -> str:
    """Return operation and version of a commit that removed many rows at once. Empty for any other commit."""
    operation = str(info.get("operation", ""))
    is_overwrite = str((info.get("operationParameters") or {}).get("mode", "")).lower() == "overwrite"
    is_replacement = operation.startswith(("CREATE OR REPLACE", "REPLACE TABLE"))
    if operation in {"RESTORE", "TRUNCATE"} or is_replacement or (operation == "WRITE" and is_overwrite):
        return f"{operation}{' (overwrite)' if is_overwrite else ''} in version {version}"
    return ""
