"""Checks that compare options with each other. They need no ledger. Pure functions.

The values are parsed, and their keys are field names of `LedgerOptions`. Errors name the options and their values.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_ledger.connector.options.bucket import ACCESS
from pyspark_ledger.connector.options.option import option_name
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ledger_selection import Addressing
from pyspark_ledger.ledger.position import EARLIEST, LATEST

Values = Mapping[str, object]
_EDGES = ("starting", "ending")
# Options that a read with option `table` accepts. Other modules check the options of a bucket and of a history.
_OF_A_TABLE = frozenset(
    {
        "table", "ledger", "store", "tls_trust_certs_file_path", "tls_certificate_file_path", "tls_key_file_path",
        "auth_params", *ACCESS,
    }
)  # fmt: skip


def require_consistent(values: Values) -> None:
    """Raise Refused for options that contradict each other in every use.

    A use is a batch read, a batch write, a stream that reads or a stream that writes.
    """
    _require_one_of(values, "ledger", "ledgers", "ledgers_pattern")
    strange = sorted(set(values) - _OF_A_TABLE)
    if "table" in values and strange and values.keys().isdisjoint({"history", "offload"}):
        raise Refused(
            f"option {option_name(strange[0])!r} has no meaning with 'table': such a read returns no rows of a ledger",
            hint="Leave it out, and select columns or rows of the result",
        )
    for edge in _EDGES:
        _require_one_of(values, f"{edge}_position", f"{edge}_timestamp")
        both = sorted(_places(values, f"{edge}_positions").keys() & _places(values, f"{edge}_timestamps").keys())
        if both:
            raise Refused(
                f"ledger {both[0]} is in '{edge}Positions' and in '{edge}Timestamps'",
                hint="Name the ledger in only one of the two options",
            )
    _require_one_of(values, "rescued_data_column", "dead_letter_ledger")
    if "dead_letter_ledger" in values and values.get("ack_mode") == "explicit":
        raise Refused(
            "option 'deadLetterLedger' has no meaning for ackMode 'explicit': the query would never acknowledge a dead "
            "letter",
            hint="Use 'rescuedDataColumn', which keeps undecodable data in the rows, and acknowledge these rows",
        )
    ends = _places(values, "ending_positions")
    named = sorted(name for name, at in ends.items() if at == EARLIEST)
    if values.get("ending_position") == EARLIEST:
        raise Refused("option 'endingPosition' is 'earliest', expected latest or SEGMENT:ENTRY")
    if named:
        raise Refused(f"option 'endingPositions' is 'earliest' for {named[0]}, expected latest or SEGMENT:ENTRY")
    _require_order(values, "starting_timestamp", "is after", "ending_timestamp")
    _require_order(values, "min_rows_per_trigger", "exceeds", "max_rows_per_trigger")
    if "max_trigger_delay" in values and "min_rows_per_trigger" not in values:
        raise Refused("option 'maxTriggerDelay' is given without 'minRowsPerTrigger'", hint="Give both, or neither")


def require_sense(values: Values, use: str) -> None:
    """Raise Refused for options without a meaning in this use, such as a batch read from `latest`."""
    starts, ends = _places(values, "starting_positions"), _places(values, "ending_positions")
    later = sorted(name for name, at in starts.items() if at == LATEST)
    if use == "batch read" and (later or values.get("starting_position") == LATEST):
        raise Refused(
            f"a batch read of {later[0] if later else 'all ledgers'} from 'latest' would be empty",
            hint="Start it at earliest, a position or a time",
        )
    if use == "stream read" and LATEST in (values.get("ending_position"), *ends.values()):
        raise Refused(
            "a stream that ends at 'latest' would be empty",
            hint="Read the present rows with Trigger.AvailableNow, or end at a position or a time",
        )


def _require_one_of(values: Values, *fields: str) -> None:
    given = [name for name in fields if name in values]
    if len(given) > 1:
        pairs = " and ".join(f"{option_name(name)!r} ({_value_text(values[name])})" for name in given)
        raise Refused(f"options {pairs} exclude each other", hint="Give one of them")


def _require_order(values: Values, less: str, relation: str, more: str) -> None:
    low, high = values.get(less), values.get(more)
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise Refused(f"option {option_name(less)!r} ({low}) {relation} {option_name(more)!r} ({high})")


def require_addressed(values: Values) -> None:
    """Raise Refused for an invalid name of a ledger, and for a position in a ledger that is not read."""
    ledger, ledgers, pattern = values.get("ledger"), values.get("ledgers"), values.get("ledgers_pattern")
    if not (ledger or ledgers or pattern):
        return
    names = ledgers if isinstance(ledgers, tuple) else ()
    addressing = Addressing.of(str(ledger or ""), names, str(pattern) if pattern else None)
    dead = str(values.get("dead_letter_ledger", ""))
    if dead and addressing.addresses(dead):
        raise Refused(
            f"option 'deadLetterLedger' is {dead}, which the query itself reads: the read is of {addressing}",
            hint="Name a ledger that the query does not read",
        )
    for edge in _EDGES:
        position = values.get(f"{edge}_position")
        if (ledgers or pattern) and position not in (None, EARLIEST, LATEST):
            raise Refused(
                f"option '{edge}Position' is {position}, a position in one ledger; the read is of {addressing}",
                hint=f"Name the ledger in '{edge}Positions'",
            )
        for kind in ("positions", "timestamps"):
            for name in _places(values, f"{edge}_{kind}"):
                if not addressing.addresses(name):
                    raise Refused(
                        f"option {option_name(f'{edge}_{kind}')!r} names ledger {name}, the read is of {addressing}"
                    )


def _places(values: Values, field: str) -> dict[str, object]:
    found = values.get(field, {})
    return found if isinstance(found, dict) else {}


def _value_text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
