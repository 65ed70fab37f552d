"""Options of a read from a bucket: the objects, and the part to read.

Rules
- Credentials are named, never given. The driver and every task find them where they read the objects.
- A directory becomes absolute on the driver.
- An option that needs a broker is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.connector.decryption_keys import KeyReferences, key_references
from pyspark_ledger.connector.options.option import LONG_CHARS_MAX, READS, flag, one_of, option, text
from pyspark_ledger.connector.options.reads import EveryReadOptions
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import require_path

if TYPE_CHECKING:
    from pyspark_ledger.offload.bucket.topic_metadata import PulsarRecord
    from pyspark_ledger.offload.storage.object_store import ObjectStore
    from pyspark_ledger.offload.storage.s3_options import S3Options

_RECORD_BYTES_MAX = 64 * 1024 * 1024
_ADVICE = (
    "Spark's Python processes have the environment in which the session was started: set credentials before that, on "
    "every host, or name offloadProfile, offloadRole or credentialProvider"
)

# Options for every read that have a meaning without a broker.
_SHARED = frozenset(
    {
        "ledger", "starting_position", "starting_timestamp", "ending_position", "include_metadata", "columns",
        "payload_schema", "rescued_data_column", "max_bytes_per_trigger", "max_rows_per_trigger",
        "min_partition_bytes", "target_partition_bytes",
    }
)  # fmt: skip


@dataclass(frozen=True)
class BucketOptions(EveryReadOptions):
    """A read from a bucket, and how a bucket is reached."""

    offload: str = option(
        text,
        READS,
        "Read sealed segments from the objects that `ledger offload` or a Pulsar wrote, without a broker. The "
        "address is `s3://bucket[/prefix]`, `file:///path` or a directory. A batch read without a ledger lists the "
        "ledgers in the bucket.",
        absent="",
    )
    offload_metadata: str = option(
        text,
        READS,
        "With `offload`: Pulsar's metadata of the topic, by which missing segments are known. Name files on the "
        "driver, separated by commas: internal statistics (JSON) or raw metadata records.",
        absent="",
        chars_max=LONG_CHARS_MAX,
    )
    offload_cluster: str = option(
        text, READS, "With `offload`: the cluster, when several clusters wrote a topic of the same name.", absent=""
    )
    offload_scan: str = option(
        one_of("auto", "none"),
        READS,
        "With `offload`, for topics of messages: `auto` first scans all entries for transactions, chunked "
        "messages, times and rows. `none` declares that there are no transactions and no chunks; the read fails "
        "when one is found.",
        default="auto",
    )
    crypto_keys: KeyReferences = option(
        key_references,
        READS,
        "With `offload`: the places of the private keys for messages that Pulsar's clients encrypted. Give "
        '`file:/path` or `env:NAME`, or JSON by the names of the keys: `{"orders": "file:/path"}`. Never give a '
        "key itself, because plans and logs show options. Every task reads the keys on its own host.",
        absent=(),
        shown=False,
        chars_max=LONG_CHARS_MAX,
    )
    offload_endpoint: str = option(
        text,
        READS,
        "With `offload` or `history`: the endpoint of another S3, `https://host:port`.",
        absent="",
        otherwise="AWS",
    )
    offload_region: str = option(text, READS, "With `offload` or `history`: the region of the bucket.", absent="")
    offload_path_style: bool | None = option(
        flag,
        READS,
        "With `offload` or `history`: put the bucket's name into the path of requests instead of their host name.",
        otherwise="true with an endpoint",
    )
    offload_profile: str = option(
        text,
        READS,
        "With `offload` or `history`: a profile of the AWS files, instead of boto3's chain of credentials.",
        absent="",
    )
    offload_role: str = option(text, READS, "With `offload` or `history`: the ARN of a role to assume.", absent="")
    offload_role_external_id: str = option(
        text, READS, "With `offload` or `history`: the external id for that role.", absent=""
    )
    offload_bucket_owner: str = option(
        text, READS, "With `offload` or `history`: the account that must own the bucket.", absent=""
    )
    credential_provider: str = option(
        text,
        READS,
        "With `offload` or `history`: `module:function`, called with the address in each process that reads. The "
        "function returns a boto3 session, or a mapping with `access_key`, `secret_key` and optionally `token` and "
        "`expiry_time`.",
        absent="",
    )

    @property
    def address(self) -> str:
        """Address; a directory as an absolute path."""
        return self.offload if "://" in self.offload else str(Path(self.offload).absolute())

    def s3(self) -> S3Options:
        """Return the parameters of the bucket's S3 client."""
        from pyspark_ledger.offload.storage.s3_options import S3Options

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

    def store(self) -> ObjectStore:
        """Open the object store, in this process."""
        from pyspark_ledger.offload.storage.factory import open_object_store

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


def take_bucket_options(values: dict[str, object], names: Mapping[str, str]) -> BucketOptions | None:
    """Take the options above out of `values`; None if no bucket is read. `names` spells fields for errors."""
    own = {field.name for field in fields(BucketOptions)}
    if "offload" not in values:
        own -= {field.name for field in fields(EveryReadOptions)}
    given = {name: values.pop(name) for name in list(values) if name in own}
    if "offload" not in given:
        if given:
            name = names[next(iter(given))]
            raise Refused(f"option {name!r} is given without 'offload'", hint="It belongs to a read from a bucket")
        return None
    strange = sorted(set(values) - _SHARED)
    if strange:
        raise Refused(
            f"option {names[strange[0]]!r} has no meaning with 'offload': no broker is asked",
            hint="Leave it out, or read the ledger through its store",
        )
    return BucketOptions(**given)  # type: ignore[arg-type]  # each parser answers its field's type
