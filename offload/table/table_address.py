"""Where a published table is: a directory, or a bucket that is reached as every bucket is here.

Rules: what a user gives is a path or an `s3://` address. The name of a table means something to a catalog only, and a
data source has no session to ask one. An address pickles, and holds no secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.ledger.errors import NotFound, Refused, Unsupported
from pyspark_ledger.offload.storage.address import ObjectAddress
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.storage.s3_options import S3Options


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where a table is, and how that is reached. Pickles, and holds no secret."""

    location: str
    s3: S3Options

    @classmethod
    def of(cls, table: str, s3: S3Options | None = None) -> TableAddress:
        """The address as a user gives it; Refused for the name of a table, which only a catalog can resolve."""
        if not table.strip():
            raise Refused("option 'history' is empty", hint="Give the table's path or s3:// address")
        parsed = ObjectAddress.parse(table)
        if "%" in str(parsed.directory or parsed.prefix):
            raise Unsupported(f"table {table!r} has a '%' in its path, which deltalake takes for an escape")
        if parsed.directory is None:
            return cls(str(parsed), s3 or S3Options())
        if "://" not in table and "/" not in table and not parsed.directory.exists():
            raise Refused(
                f"option 'history' is {table!r}, and there is no such directory; a table of a catalog is known to "
                "Spark's session, not where a source is planned",
                hint=f'Give its path: pyspark_ledger.history_of(spark, "{table}") asks DESCRIBE DETAIL for it',
            )
        return cls(str(parsed.directory), s3 or S3Options())

    @property
    def local(self) -> bool:
        return "://" not in self.location

    def storage_options(self) -> dict[str, str] | None:
        """How deltalake reaches a bucket, as our own options say; None for a directory."""
        return None if self.local else self.s3.object_store_options(self.location)

    def local_file(self, path: str) -> Path:
        return Path(self.location) / path

    def read(self, path: str, most: int) -> bytes:
        """A whole small file of the table; raises NotFound, and Refused for a larger one."""
        if not self.local:
            return bytes(open_object_store(self.location, self.s3).get(path, most).data)
        try:
            data = self.local_file(path).read_bytes()
        except FileNotFoundError as gone:
            raise NotFound(f"there is no {path} in {self.location}") from gone
        if len(data) > most:
            raise Refused(f"{path} in {self.location} has {len(data)} bytes, at most {most} were expected")
        return data
