"""Location of a store as a user writes it: the store's directory, its bucket, or the address of its broker.

    s3://lake/ledgers     ~/.cache/pyspark-ledger/s3%3A%2F%2Flake%2Fledgers      directory of a store in a bucket

Rules
- A store in a bucket has a local directory on each host, which is a cache. The name of the directory is the address.
  `LEDGER_CACHE` is the directory of all caches.
- The caller's location is used first, then the environment variable `LEDGER_STORE`, then `./ledger-store`. A directory
  is made absolute.
- A relative path, such as the default `./ledger-store`, is refused in a process that is not the user's own
  (`_require_own_directory`). Reason: Spark deletes the working directories of such processes, and with them the rows.
- The length and the characters of a path are checked before any system call with the path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.hidden_characters import require_encodable

_CHARS_MAX = 4096  # PATH_MAX of Linux
_SHOWN = 40


def require_path(text: str, what: str) -> None:
    """Raise Refused if the text cannot be a path. `what` names the path in the message."""
    if len(text) > _CHARS_MAX:
        raise Refused(
            f"{what} has {len(text)} characters, at most {_CHARS_MAX} are allowed; the first are {text[:_SHOWN]!r}",
            hint="Correct the path",
        )
    require_encodable(text, what)
    if "\0" in text:
        raise Refused(f"{what} {text!r} has the character U+0000, which a path cannot have", hint="Correct the path")


_HOST = re.compile(r"[A-Za-z0-9._~%:-]+")
FENCED = "fenced"
"""File in the local directory of a store in a bucket: why its last broker was fenced. A text."""
_BUCKET = "s3://"
_NAME_MAX = 240  # below the limit of a file's name, 255 bytes
# Variables of the containers in which YARN and Kubernetes run executors, and drivers in cluster mode.
_CONTAINERS = ("SPARK_YARN_STAGING_DIR", "SPARK_EXECUTOR_ID", "SPARK_DRIVER_BIND_ADDRESS")
# Working directories of Spark: below `spark.local.dir`, and those of a standalone worker.
_OF_SPARK = re.compile(r"(spark|blockmgr|userFiles|artifacts)-[0-9a-f]{8}-[0-9a-f-]{27}|(driver|app)-\d{14}-\d{4}")
_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://", "grpc+unix://")


def store_location(given: str | os.PathLike[str] | None = None) -> str:
    """Return the store's location: `given`, else `LEDGER_STORE`, else `./ledger-store`.

    A directory is made absolute. For a bucket, the result is the local directory of its store.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise Refused(f"the store is {given!r}, expected a directory or a broker's address")
    text = os.fspath(given) if given else os.environ.get("LEDGER_STORE") or ""
    if not text:
        _require_own_directory("")
        text = "ledger-store"
    text = text.removeprefix("file://")
    require_path(text, "the store's location")
    if "://" in text and "@" in urlsplit(text).netloc:
        raise Refused(
            "the store's address contains a user or a password, which is not shown here",
            hint="Write grpc+tls://HOST:PORT, and name the token by reference",
        )
    if is_address(text):
        _require_address(text)
        return text
    if text.startswith(_BUCKET):
        return str(bucket_directory(text))
    if "://" in text:
        raise Refused(
            f"store {text!r} is neither a directory of this host nor a bucket nor a broker's address",
            hint=f"A bucket begins with {_BUCKET}, an address with {', '.join(_SCHEMES)}",
        )
    path = Path(text).expanduser()
    if not path.is_absolute():
        _require_own_directory(text)
    return str(path.absolute())


def _require_own_directory(relative: str) -> None:
    """Raise Refused if a store at a relative path would not be in a directory of the user. Empty means the default."""
    directory = Path.cwd()
    session = os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default")  # Spark's value without Connect is `default`
    container = next((name for name in _CONTAINERS if name in os.environ), "")
    if session != "default":
        owner = f"session {session} of a Spark Connect server"
    elif container:
        owner = f"a container of a Spark cluster, which has the variable {container}"
    elif any(_OF_SPARK.fullmatch(part) for part in directory.parts):
        owner = "Spark, which deletes it later"
    else:
        return
    if relative:
        raise Refused(
            f"store {relative!r} is relative, and {directory / relative} would lie in a directory of {owner}",
            hint="Give an absolute directory of this host, a bucket, or a broker's address",
        )
    raise Refused(
        f"no store is named, and the default {directory / 'ledger-store'} would lie in a directory of {owner}",
        hint="Set option 'store', or call configure(spark, store=…), or set LEDGER_STORE for this process, "
        "for example on the Connect server",
    )


def is_address(location: str) -> bool:
    """Return whether a location is a broker's address. Any other location is a directory."""
    return location.startswith(_SCHEMES)


def bucket_directory(address: str) -> Path:
    """Return the local directory of the store in a bucket. Raises Refused for a malformed address."""
    place = address.removeprefix(_BUCKET).rstrip("/")
    name = quote(_BUCKET + place, safe="")
    if not place or place.startswith("/") or len(name) > _NAME_MAX:
        raise Refused(
            f"the store's bucket {address!r} has {len(name)} characters with escapes, 1 to {_NAME_MAX} are allowed",
            hint="Write s3://BUCKET/PREFIX",
        )
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:  # the user has no home
        cache = "/var/tmp"  # noqa: S108 — the store's directory below is private
    root = os.environ.get("LEDGER_CACHE") or f"{cache}/pyspark-ledger"
    return Path(root).expanduser().absolute() / name


def bucket_of(directory: Path) -> str:
    """Return the address of the bucket whose store has this local directory. Empty for any other directory."""
    address = unquote(directory.name)
    return address if address.startswith(_BUCKET) and quote(address, safe="") == directory.name else ""


def location_text(location: str | Path) -> str:
    """Return a store's location as users know it: `s3://…` for the local directory of a store in a bucket."""
    return bucket_of(Path(location)) or str(location)


def _require_address(text: str) -> None:
    """Raise Refused if an address has no valid host or no port."""
    if text.startswith("grpc+unix://"):
        return
    try:
        parts = urlsplit(text)
        complete = _HOST.fullmatch(parts.hostname or "") is not None and bool(parts.port)
    except ValueError:
        complete = False
    if not complete:
        raise Refused(
            f"the broker's address {text!r} needs a valid host and a numeric port",
            hint="Write grpc://HOST:PORT or grpc+tls://HOST:PORT",
        )
