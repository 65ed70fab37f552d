"""Options of a read of a store in a bucket without a broker (option `broker` = `none`).

The bucket that contains such a store is its *home* bucket.

Rules
- The user gives the access to the home bucket with the same options as the access to the bucket of `offload`.
- An option that needs a broker is refused, even if other reads accept it.
- Writes refuse the option `broker` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark_ledger.connector.options.bucket import ACCESS, BucketOptions
from pyspark_ledger.connector.options.option import READS, Option
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import bucket_of

# Options of a read that have a meaning without a broker.
_SHARED = frozenset(
    {
        "broker", "store", "path", "ledger", "ledgers", "ledgers_pattern", "starting_position", "starting_timestamp",
        "starting_positions", "starting_timestamps", "ending_position", "ending_timestamp", "ending_positions",
        "ending_timestamps", "fail_on_data_loss", "include_metadata", "columns", "payload_schema",
        "rescued_data_column", "min_partition_bytes", "target_partition_bytes", "max_bytes_per_trigger",
        "max_rows_per_trigger", "min_rows_per_trigger", "max_trigger_delay", "first_batch",
    }
)  # fmt: skip


def take_home_options(values: dict[str, object], options: Mapping[str, Option]) -> BucketOptions | None:
    """Remove the options for access to the bucket from `values`, and return them; None unless `broker` is `none`.

    `options` are all options by their keys. `read_options` refuses an option that no read accepts.
    """
    if values.get("broker") != "none":
        return None
    strange = sorted(key for key in set(values) - _SHARED - ACCESS if not set(READS).isdisjoint(options[key].uses))
    if "subscription" in strange:
        raise Refused(
            f"option 'subscription' is {values['subscription']!r} with 'broker' = 'none': only the store's broker can "
            "move a cursor",
            hint="Leave 'subscription' out, the checkpoint keeps the position. Or leave 'broker' out",
        )
    if strange:
        raise Refused(
            f"option {options[strange[0]].name!r} has no meaning with 'broker' = 'none': such a read uses the store's "
            "bucket alone",
            hint="Leave one of the two options out",
        )
    return BucketOptions(**{key: values.pop(key) for key in list(values) if key in ACCESS})  # type: ignore[arg-type]  # each option's parser returns the type of its field


def require_home(location: str) -> str:
    """Return the address of the bucket that contains a store. Raises Refused for a store that is not in a bucket."""
    address = bucket_of(Path(location))
    if not address:
        raise Refused(
            f"option 'broker' is 'none', and the store {location} is not in a bucket",
            hint="Only a store at s3://BUCKET/PREFIX is read without a broker. open_read_only() reads a directory",
        )
    return address
