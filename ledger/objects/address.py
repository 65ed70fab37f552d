"""Addresses of object storage, as a user writes them: `s3://bucket[/prefix]`, `file:///path` or a directory.

Rules
- An address contains no credentials.
- A bucket name follows S3's rules. The prefix is put before every key, with one slash between them.
- Hadoop's schemes `s3a://` and `s3n://` mean `s3://`.
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
        """Parse an address. Raises Refused with the bad value, except parts that may contain a password."""
        original = os.fspath(text)
        if not original.strip():
            raise Refused("the address of the object storage is empty", hint=_HINT)
        if "://" not in original:
            return cls(directory=_directory(original))
        try:
            parts = urlsplit(original)
        except ValueError:
            raise Refused("the address of the object storage has an unpaired '[' or ']'", hint=_HINT) from None
        if "@" in parts.netloc:
            raise Refused(
                "the address of the object storage contains a user or a password and is therefore not shown",
                hint="Name a profile, the environment or a credential provider instead",
            )
        if parts.query or parts.fragment:  # the query of a presigned URL is a secret
            stripped = original.partition("?")[0].partition("#")[0]
            raise Refused(f"address {stripped!r} has a query or a fragment, which may be a secret", hint=_HINT)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise Refused(f"address {original!r} names the host {parts.netloc!r}, expected none", hint=_HINT)
            return cls(directory=_directory(unquote(parts.path)))
        if parts.scheme not in _S3:
            raise Refused(f"address {original!r} is neither an S3 address nor a directory", hint=_HINT)
        return cls(_bucket(parts.netloc, original), _prefix(parts.path, original))

    def __str__(self) -> str:
        if self.directory is not None:
            return self.directory.as_uri()
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, name: str) -> str:
        """Return the full key of an object in the bucket: prefix and name."""
        return f"{self.prefix}/{name}" if self.prefix else name


def _directory(text: str) -> Path:
    require_path(text, "the address of the object storage")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as wrong:
        raise Refused(
            f"directory {text!r} begins with the home of a user that does not exist", hint="Write the whole path"
        ) from wrong


def _bucket(name: str, original: str) -> str:
    if not _BUCKET.fullmatch(name) or ".." in name:
        raise Refused(
            f"address {original!r} names the bucket {name!r}, which is not a valid name",
            hint="A bucket has 3 to 63 lower-case letters, digits, dots and hyphens",
        )
    return name


def _prefix(path: str, original: str) -> str:
    prefix = path.strip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise Refused(f"address {original!r} has an empty part, '.' or '..' in its prefix", hint=_HINT)
    return prefix
