"""Private keys of encrypted messages, as option `cryptoKeys` names them: by reference, and read by tasks.

    file:/run/secrets/orders.pem                                  one key, whatever name the producers gave it
    {"orders": "file:/run/secrets/orders.pem", "old": "env:OLD"}  several, by those names

Rules: only references are planned, pickled and shown. What is no reference may be a key that somebody pasted, and is
never repeated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspark_ledger.connector.connection import file_on_this_host
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.location import require_path

if TYPE_CHECKING:
    from pyspark_ledger.ledger.message.encryption import PrivateKeys

KeyReferences = tuple[tuple[str, str], ...]
_FORMS = 'file:/path, env:NAME, or JSON such as {"name": "file:/path"}'
_KEY_BYTES_MAX = 64 * 1024


def key_references(value: str) -> KeyReferences:
    """The references of the option, by name; raises ValueError, without a word of what was given."""
    from pyspark_ledger.ledger.message.encryption import ANY_NAME  # options are read in processes that decode nothing

    said = value.strip()
    named = {ANY_NAME: said}
    if said.startswith("{"):
        try:
            named = msgspec.json.decode(said, type=dict[str, str])
        except JSON_FAULTS as wrong:
            raise ValueError(_FORMS) from wrong
    if not named or not all(name and _is_reference(reference) for name, reference in named.items()):
        raise ValueError(_FORMS)
    return tuple(sorted(named.items()))


def read_keys(references: KeyReferences) -> PrivateKeys | None:
    """The keys, read now, on this host; None without a reference."""
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
                f"option 'cryptoKeys' names variable {place!r} for key {name!r}, the environment has none",
                hint="Set it for the driver and every executor, or name a file",
            )
        return text.encode()
    require_path(place, f"the path of key {name!r} in option 'cryptoKeys'")
    path = Path(file_on_this_host(_path(place)))
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
