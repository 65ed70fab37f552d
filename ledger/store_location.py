"""Where a store is: a directory of this host, or a broker's address.

Rules: what is given goes before `LEDGER_STORE`, that before `./ledger-store`; a directory is made absolute.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from ledger.errors import Refused
from ledger.path_text import require_path

_HOST = re.compile(r"[A-Za-z0-9._~%:-]+")
_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://", "grpc+unix://")


def store_location(given: str | os.PathLike[str] | None = None) -> str:
    """Where the store is: what is given, else `LEDGER_STORE`, else `./ledger-store`. Directories become absolute."""
    if given is not None and not isinstance(given, str | os.PathLike):
        raise Refused(f"the store is {given!r}, expected a directory or a broker's address")
    text = os.fspath(given) if given else os.environ.get("LEDGER_STORE") or "ledger-store"
    text = text.removeprefix("file://")
    require_path(text, "the store's location")
    if "://" in text and "@" in urlsplit(text).netloc:
        raise Refused(
            "the store's address holds a user or a password, which is not shown here",
            hint="Write grpc+tls://HOST:PORT, and name the token by reference",
        )
    if is_address(text):
        _require_address(text)
        return text
    if "://" in text:
        raise Refused(
            f"store {text!r} is neither a directory of this host nor a broker's address",
            hint=f"An address begins with {', '.join(_SCHEMES)}",
        )
    return str(Path(text).expanduser().absolute())


def is_address(location: str) -> bool:
    """Whether a location is a broker's address; else it is a directory."""
    return location.startswith(_SCHEMES)


def _require_address(text: str) -> None:
    """Refuse an address that no connection can be made to."""
    if text.startswith("grpc+unix://"):
        return
    try:
        parts = urlsplit(text)
        whole = _HOST.fullmatch(parts.hostname or "") is not None and bool(parts.port)
    except ValueError:
        whole = False
    if not whole:
        raise Refused(
            f"the broker's address {text!r} has no host or no port that is a number",
            hint="Write grpc://HOST:PORT or grpc+tls://HOST:PORT",
        )
