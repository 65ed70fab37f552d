"""Private keys of encrypted messages: option `cryptoKeys` has references to keys, and tasks read the keys.

    file:/run/secrets/orders.pem                                  one key for every key name
    {"orders": "file:/run/secrets/orders.pem", "old": "env:OLD"}  several keys by name

Plans and logs contain only references, never a key. If the option's value is not a reference, it may be a key that a
user pasted by mistake. So an error never quotes the value.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspark_ledger.connector.connection import local_path
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.location import require_path

if TYPE_CHECKING:
    from pyspark_ledger.ledger.message.encryption import PrivateKeys

KeyReferences = tuple[tuple[str, str], ...]
_FORMS = 'file:/path, env:NAME, or JSON such as {"name": "file:/path"}'
_KEY_BYTES_MAX = 64 * 1024


def key_references(value: str) -> KeyReferences:
    """Return the references in the option's value, by key name.

    Raises ValueError for an invalid value. The error states the expected form and does not contain the value.
    """
    from pyspark_ledger.ledger.message.encryption import (
        ANY_NAME,
    )  # imported here, because most processes that parse options decrypt no message

    text = value.strip()
    references = {ANY_NAME: text}
    if text.startswith("{"):
        try:
            references = msgspec.json.decode(text, type=dict[str, str])
        except JSON_FAULTS as wrong:
            raise ValueError(_FORMS) from wrong
    if not references or not all(name and _is_reference(reference) for name, reference in references.items()):
        raise ValueError(_FORMS)
    return tuple(sorted(references.items()))


def read_keys(references: KeyReferences) -> PrivateKeys | None:
    """Return the keys, read on this host; None if there are no references."""
    from pyspark_ledger.ledger.message.encryption import PrivateKeys

    return PrivateKeys({name: _read(name, reference) for name, reference in references}) if references else None


def _is_reference(text: str) -> bool:
    kind, _, name = text.partition(":")
    return bool(name) and (kind == "env" or (kind == "file" and Path(_path(name)).is_absolute()))


def _path(name: str) -> str:
    return name.removeprefix("//")


def _read(name: str, reference: str) -> bytes:
    kind, _, place = reference.partition(":")
    if kind == "env":
        text = os.environ.get(place)
        if text is None:
            raise NotFound(
                f"option 'cryptoKeys' names variable {place!r} for key {name!r}, which is not set",
                hint="Name a file instead, cryptoKeys=file:/path, or set the variable for the driver and all executors "
                "before the session starts",
            )
        return text.encode()
    require_path(place, f"the path of key {name!r} in option 'cryptoKeys'")
    path = Path(local_path(_path(place)))
    try:
        with path.open("rb") as file:
            pem = file.read(_KEY_BYTES_MAX + 1)
    except OSError as wrong:
        raise NotFound(
            f"option 'cryptoKeys' names {str(path)!r} for key {name!r}, which cannot be read: {wrong.strerror}",
            hint="Put the file on the driver's host and every executor's, or ship it with spark.files",
        ) from wrong
    if len(pem) > _KEY_BYTES_MAX:
        raise Refused(f"{str(path)!r} has more than {_KEY_BYTES_MAX} bytes, which is no private key")
    return pem
