"""Address of a published table: a directory or an S3 bucket.

Rules
- A user gives a path or an `s3://` address. A table name is refused, because only the catalog of a Spark session can
  resolve it, and a data source has no session.
- An address can be pickled, and contains no secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.ledger.errors import NotFound, Refused, Unsupported
from pyspark_ledger.ledger.objects.address import ObjectAddress
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Location of a table and the options of S3 access."""

    location: str
    s3: S3Options

    @classmethod
    def of(cls, table: str, s3: S3Options | None = None) -> TableAddress:
        """Parse the address that a user gives. Raises Refused for a table name, Unsupported for a `%` in the path."""
        if not table.strip():
            raise Refused("option 'history' is empty", hint="Give the table's path or s3:// address")
        parsed = ObjectAddress.parse(table)
        if "%" in str(parsed.directory or parsed.prefix):
            raise Unsupported(f"table {table!r} has a '%' in its path, which deltalake takes for an escape")
        if parsed.directory is None:
            return cls(str(parsed), s3 or S3Options())
        if "://" not in table and "/" not in table and not parsed.directory.exists():
            raise Refused(
                f"option 'history' is {table!r}, and there is no such directory; a table of a catalog cannot be "
                "resolved, because a data source has no Spark session",
                hint=f'Give the path of the table. pyspark_ledger.history_of(spark, "{table}") returns it',
            )
        return cls(str(parsed.directory), s3 or S3Options())

    @property
    def local(self) -> bool:
        return "://" not in self.location

    def storage_options(self) -> dict[str, str] | None:
        """Return deltalake's options for access to the bucket. Returns None for a directory."""
        return None if self.local else self.s3.object_store_options(self.location)

    def local_file(self, path: str) -> Path:
        return Path(self.location) / path

    def read(self, path: str, most: int) -> bytes:
        """Return a whole file of the table. Raises NotFound, or Refused if it has more than `most` bytes."""
        if not self.local:
            return bytes(open_object_store(self.location, self.s3).get(path, most).data)
        try:
            data = self.local_file(path).read_bytes()
        except FileNotFoundError as gone:
            raise NotFound(f"there is no {path} in {self.location}") from gone
        if len(data) > most:
            raise Refused(f"{path} in {self.location} has {len(data)} bytes, at most {most} were expected")
        return data
