"""Where objects are kept, as a user writes it: `s3://bucket[/prefix]`, `file:///path` or a directory.

Rules: an address names no credentials. A bucket is spelled as S3 demands it; a prefix stands before every key, with one
slash between. `s3a://` and `s3n://`, as Hadoop writes them, mean `s3://`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import require_path

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_S3 = ("s3", "s3a", "s3n")
_HINT = "Write s3://bucket, s3://bucket/prefix, file:///path or a directory"


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A bucket with a prefix (`directory` is None), or a directory (`bucket` is empty)."""

    bucket: str = ""
    prefix: str = ""
    directory: Path | None = None

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> ObjectAddress:
        """Read an address; raises Refused with the bad value, which is not shown when it may hold a password."""
        given = os.fspath(text)
        if not given.strip():
            raise Refused("the address of the object storage is empty", hint=_HINT)
        if "://" not in given:
            return cls(directory=_directory(given))
        try:
            parts = urlsplit(given)
        except ValueError:
            raise Refused("the address of the object storage has a '[' or ']' that ends nowhere", hint=_HINT) from None
        if "@" in parts.netloc:
            raise Refused(
                "an address of object storage holds a user or a password, which is not shown here",
                hint="Name a profile, the environment or a credential provider instead",
            )
        if parts.query or parts.fragment:  # of a signed address it is a password
            shown = given.partition("?")[0].partition("#")[0]
            raise Refused(f"address {shown!r} has a query or a fragment behind it, which is not shown here", hint=_HINT)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise Refused(f"address {given!r} names the host {parts.netloc!r}", hint=_HINT)
            return cls(directory=_directory(unquote(parts.path)))
        if parts.scheme not in _S3:
            raise Refused(f"address {given!r} is neither of S3 nor a directory", hint=_HINT)
        return cls(_bucket(parts.netloc, given), _prefix(parts.path, given))

    def __str__(self) -> str:
        if self.directory is not None:
            return self.directory.as_uri()
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, name: str) -> str:
        """The whole key of an object in the bucket."""
        return f"{self.prefix}/{name}" if self.prefix else name


def require_address(text: str) -> None:
    """Raise Refused unless `text` is an address of object storage."""
    ObjectAddress.parse(text)


def _directory(text: str) -> Path:
    require_path(text, "the address of the object storage")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as wrong:
        raise Refused(
            f"directory {text!r} is in no home: there is no such user", hint="Write the whole path"
        ) from wrong


def _bucket(name: str, given: str) -> str:
    if not _BUCKET.fullmatch(name) or ".." in name:
        raise Refused(
            f"address {given!r} names the bucket {name!r}",
            hint="A bucket has 3 to 63 lower-case letters, digits, dots and hyphens",
        )
    return name


def _prefix(path: str, given: str) -> str:
    prefix = path.strip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise Refused(f"address {given!r} has an empty part, '.' or '..' in its prefix", hint=_HINT)
    return prefix
