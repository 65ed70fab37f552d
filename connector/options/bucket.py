"""Options of a read from a bucket: the objects, the access to them, and the part to read.

A segment is one file of a ledger; a sealed segment never changes.

Rules
- An option names a source of credentials and never contains a credential. The driver and every task search for
  credentials on their own host.
- The driver replaces a relative directory by the absolute path.
- An option that needs a broker is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.connector.decryption_keys import KeyReferences, key_references
from pyspark_ledger.connector.options.option import (
    EVERYWHERE,
    LONG_CHARS_MAX,
    READS,
    flag,
    one_of,
    option,
    option_name,
    text,
)
from pyspark_ledger.connector.options.reads import EveryReadOptions
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import require_path

if TYPE_CHECKING:
    from pyspark_ledger.ledger.objects.object_store import ObjectStore
    from pyspark_ledger.ledger.objects.s3_options import S3Options
    from pyspark_ledger.offload.bucket.topic_metadata import PulsarRecord

_RECORD_BYTES_MAX = 64 * 1024 * 1024
_ADVICE = (
    "Set option credentialProvider=file:/path, or offloadProfile or offloadRole. Spark's Python processes keep the "
    "environment variables that they had when the session started"
)

# Options for every read that are also allowed without a broker.
_SHARED = frozenset(
    {
        "ledger", "starting_position", "starting_timestamp", "ending_position", "include_metadata", "columns",
        "payload_schema", "rescued_data_column", "max_bytes_per_trigger", "max_rows_per_trigger",
        "first_batch", "min_partition_bytes", "target_partition_bytes",
    }
)  # fmt: skip

ACCESS = frozenset(
    {
        "offload_endpoint", "offload_region", "offload_path_style", "offload_profile", "offload_role",
        "offload_role_external_id", "offload_bucket_owner", "credential_provider",
    }
)  # fmt: skip
"""Fields of the options that give access to a bucket. The other options select the objects to read."""


@dataclass(frozen=True)
class BucketOptions(EveryReadOptions):
    """Read from a bucket: the objects, and access to the bucket."""

    offload: str = option(
        text,
        READS,
        "Read sealed segments from the objects that `ledger offload` or a Pulsar cluster wrote, without a broker. The "
        "address is `s3://bucket[/prefix]`, `file:///path` or a directory. A batch read that names no ledger lists the "
        "objects in the bucket.",
        absent="",
    )
    offload_metadata: str = option(
        text,
        READS,
        "With `offload`: Pulsar's metadata of the topic, which list all segments, so that missing segments are "
        "detected. Give the names of files on the driver, separated by commas. They contain the JSON that "
        "`pulsar-admin topics stats-internal` prints, or raw metadata records.",
        absent="",
        chars_max=LONG_CHARS_MAX,
    )
    offload_cluster: str = option(
        text, READS, "With `offload`: the Pulsar cluster, if several clusters wrote a topic of this name.", absent=""
    )
    offload_scan: str = option(
        one_of("auto", "none"),
        READS,
        "With `offload`, for topics of messages: `auto` first scans all entries. `none` skips the scan, for a topic "
        "without transactions and chunks. If the read then finds one, it fails.",
        default="auto",
    )
    crypto_keys: KeyReferences = option(
        key_references,
        READS,
        "With `offload`: the places of the private keys for messages that Pulsar's clients encrypted. Give "
        "`file:/path` or `env:NAME`. For several keys, give JSON with the place of each: "
        '`{"orders": "file:/path", "old": "env:KEY"}`. Never give a '
        "key itself, because plans and logs show options. Every task reads the keys on its own host.",
        absent=(),
        shown=False,
        chars_max=LONG_CHARS_MAX,
    )
    offload_endpoint: str = option(
        text,
        EVERYWHERE,
        "For any access to a bucket: the endpoint of an S3-compatible service, `https://host:port`.",
        absent="",
        otherwise="AWS",
    )
    offload_region: str = option(
        text,
        EVERYWHERE,
        "For any access to a bucket: the region of the bucket.",
        absent="",
    )
    offload_path_style: bool | None = option(
        flag,
        EVERYWHERE,
        "For any access to a bucket: `true` puts the bucket's name into the path of a request, "
        "`false` into the host name.",
        otherwise="true with an endpoint",
    )
    offload_profile: str = option(
        text,
        EVERYWHERE,
        "For any access to a bucket: a profile in the files of `~/.aws`, instead of boto3's "
        "default chain of credentials.",
        absent="",
    )
    offload_role: str = option(
        text,
        EVERYWHERE,
        "For any access to a bucket: the ARN of a role to assume.",
        absent="",
    )
    offload_role_external_id: str = option(
        text, EVERYWHERE, "With `offloadRole`: the external id that the role requires.", absent=""
    )
    offload_bucket_owner: str = option(
        text,
        EVERYWHERE,
        "For any access to a bucket: the AWS account of twelve digits that must own the bucket. A request "
        "fails if another account owns the bucket.",
        absent="",
    )
    credential_provider: str = option(
        text,
        EVERYWHERE,
        "For any access to a bucket: `file:/path` is a file in the format of `~/.aws/credentials`, with the section "
        "`offloadProfile`. `unity-catalog:NAME` is a service credential of Databricks. With `module:function`, each "
        "process that reads calls the function with the address of the bucket. The function returns a boto3 session, "
        "or a mapping with `access_key`, `secret_key` and optionally `token` and `expiry_time`.",
        absent="",
    )

    @property
    def address(self) -> str:
        """Address of the bucket. A directory is an absolute path."""
        return self.offload if "://" in self.offload else str(Path(self.offload).absolute())

    def s3(self) -> S3Options:
        """Return the parameters of the bucket's S3 client."""
        from pyspark_ledger.ledger.objects.s3_options import S3Options

        return S3Options(
            endpoint=self.offload_endpoint,
            region=self.offload_region,
            path_style=self.offload_path_style,
            profile=self.offload_profile,
            role=self.offload_role,
            role_external_id=self.offload_role_external_id,
            bucket_owner=self.offload_bucket_owner,
            credential_provider=self.credential_provider,
            advice=_ADVICE,
        )

    def given_access(self) -> str:
        """Return the name of the first access option that the user has set; empty if there is none."""
        absent = BucketOptions()
        return next((option_name(key) for key in sorted(ACCESS) if getattr(self, key) != getattr(absent, key)), "")

    def store(self) -> ObjectStore:
        """Open the object store, in this process."""
        from pyspark_ledger.ledger.objects.factory import open_object_store

        return open_object_store(self.address, self.s3())

    def records(self) -> list[PulsarRecord]:
        """Read Pulsar's records of the segments from the named files. Raises Refused for an unreadable file."""
        from pyspark_ledger.offload.bucket.topic_metadata import parse_records

        found: list[PulsarRecord] = []
        for name in filter(None, (part.strip() for part in self.offload_metadata.split(","))):
            require_path(name, "option 'offloadMetadata'")
            try:
                with Path(name).open("rb") as file:
                    data = file.read(_RECORD_BYTES_MAX)
            except OSError as wrong:
                raise Refused(
                    f"option 'offloadMetadata' names {name!r}, which cannot be read: {wrong.strerror}",
                    hint="Give files on the driver's host",
                ) from wrong
            found += parse_records(data, name)
        return found


def take_access_options(values: dict[str, object]) -> BucketOptions:
    """Remove the access options from `values`, and return them."""
    return BucketOptions(**{key: values.pop(key) for key in list(values) if key in ACCESS})  # type: ignore[arg-type]  # see below


def take_bucket_options(values: dict[str, object], names: Mapping[str, str]) -> BucketOptions | None:
    """Remove the options of a bucket from `values`, and return them; None if no bucket is read.

    `names` maps fields to the names of options, for errors.
    """
    own = {field.name for field in fields(BucketOptions)}
    if "offload" not in values:
        own -= {field.name for field in fields(EveryReadOptions)}
    given = {name: values.pop(name) for name in list(values) if name in own}
    if "offload" not in given:
        if given:
            name = names[next(iter(given))]
            raise Refused(f"option {name!r} is given without 'offload'", hint="It is an option of a read from a bucket")
        return None
    strange = sorted(set(values) - _SHARED)
    if strange:
        raise Refused(
            f"option {names[strange[0]]!r} has no meaning with 'offload': such a read uses no broker",
            hint="Leave it out, or read the ledger through its store",
        )
    return BucketOptions(**given)  # type: ignore[arg-type]  # each parser returns a value of its field's type
