"""Names of managed ledgers, as Pulsar writes them (`tenant/namespace/persistent/topic`), and of their partitions.

Rules of names
- Short names (`orders`), `tenant/namespace/topic` and `persistent://…` are understood and mean the same ledger. Every
  part is kept as the user wrote it.
- A name is never part of a path on disk. It is refused if it could not be one in another store. That excludes empty
  parts, `.` and `..`, control characters, and more than 255 bytes in a part.
- The length of a name is checked before any code scans the text.
- Hidden characters (`ledger.hidden_characters`) are refused in new names only. An existing ledger with one is opened,
  read and deleted by its name.

Rules of partitions
- Partition n of `orders` is the ledger `orders-partition-n`, as in Pulsar.
- The ledger `orders` itself holds nothing. Its record has the property `ledger.partitions`, the number of partitions.
- Partitions are numbered from 0, without a gap. Their number only grows: with fewer, keys would lose their history.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote, quote_plus

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.hidden_characters import hidden_in, require_encodable

_TENANT, _NAMESPACE, _DOMAIN = "public", "default", "persistent"
_PART_BYTES_MAX = 255
_CHARS_MAX = 1024  # more than the longest name with four parts and a domain
_SHOWN = 40
_SPELLINGS_KEPT = 2**16  # a call about a thousand ledgers names each of them several times
_HINT = "Use a name such as orders, or tenant/namespace/orders"


def canonical_name(text: str) -> str:
    """Return the full name of a user's spelling. Raises Refused with the bad value."""
    _require_measured(text, "a ledger's name")
    return _canonical(text)


def topic_text(spelled_path: str) -> str:
    """Return the topic of a managed ledger as Pulsar's clients write it. Other names are returned unchanged."""
    parts = spelled_path.split("/")
    for place in (2, 3):
        if len(parts) > place + 1 and parts[place] == _DOMAIN:
            return "persistent://" + "/".join([*parts[:place], *parts[place + 1 :]])
    return spelled_path


def require_new_name(canonical: str) -> None:
    """Refuse a name that no new ledger may have. Raises Refused with the code point."""
    _require_seen(canonical, f"ledger name {canonical!r}")


@lru_cache(maxsize=_SPELLINGS_KEPT)
def _canonical(text: str) -> str:
    local = text.removeprefix("persistent://")
    parts = local.split("/")
    if "://" in local:
        raise Refused(f"ledger name {text!r} is of another domain than persistent://", hint=_HINT)
    if text.startswith("persistent://") and len(parts) != 3:
        raise Refused(f"ledger name {text!r} has {len(parts)} parts after persistent://, expected 3", hint=_HINT)
    for part in parts:
        _require_part(part, text)
    if len(parts) == 1:
        return f"{_TENANT}/{_NAMESPACE}/{_DOMAIN}/{parts[0]}"
    if len(parts) == 3:
        return f"{parts[0]}/{parts[1]}/{_DOMAIN}/{parts[2]}"
    if len(parts) == 4 and parts[2] == _DOMAIN:
        return text
    raise Refused(
        f"ledger name {text!r} has {len(parts)} parts, expected 1, 3, or 4 with {_DOMAIN!r} third", hint=_HINT
    )


def namespace_of(canonical: str) -> str:
    """Return the namespace of a canonical name, `tenant/namespace`."""
    tenant, namespace, _, _ = canonical.split("/")
    return f"{tenant}/{namespace}"


def require_namespace(text: str) -> str:
    """Return the namespace of a user's text. Raises Refused with the bad value."""
    _require_measured(text, "a namespace")
    parts = text.split("/")
    if len(parts) != 2:
        raise Refused(f"namespace {text!r} has {len(parts)} parts, expected 2", hint="Use tenant/namespace")
    for part in parts:
        _require_part(part, text)
    return text


def require_cursor_name(text: str, ledger: str) -> None:
    """Refuse a name that no cursor can have. Raises Refused with the bad value."""
    _require_measured(text, f"a cursor's name for {ledger!r}")
    where = f"cursor name {text!r} of {ledger!r}"
    if text in ("", ".", ".."):
        raise Refused(f"{where} is none", hint="Name the subscription")
    _require_text(text, where)


def require_new_cursor_name(text: str, ledger: str) -> None:
    """Refuse a name that no new cursor may have. Raises Refused with the code point."""
    _require_seen(text, f"cursor name {text!r} of {ledger!r}")


def require_property_names(names: Iterable[str], where: str) -> None:
    """Refuse names that no new property may have. Raises Refused with the bad value."""
    for name in names:
        _require_measured(name, f"a property's name of {where!r}")
        _require_seen(name, f"property name {name!r} of {where!r}")


def short_name(canonical: str) -> str:
    """Return the shortest spelling of a canonical name."""
    return canonical.removeprefix(f"{_TENANT}/{_NAMESPACE}/{_DOMAIN}/").replace(f"/{_DOMAIN}/", "/", 1)


def pulsar_path(canonical: str) -> str:
    """Return the name in Pulsar's metadata and offloaded objects: the last part is encoded as Java's URLEncoder does.

    Java encodes the tilde and leaves the asterisk; Python never encodes the tilde. A tenant or namespace that Pulsar
    would refuse is encoded, too, because user metadata of an object are ASCII.
    """
    prefix, _, topic = canonical.rpartition("/")
    return f"{quote(prefix, safe='/=:')}/{quote_plus(topic, safe='*').replace('~', '%7E')}"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the most likely candidate for a typed `name`; None for a name that is too long to compare."""
    if len(name) > _CHARS_MAX:
        return None
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def nearest_ledger(name: str, names: Iterable[str]) -> str | None:
    """Return the short name of the most likely ledger for a typed `name`, of the same namespace if possible.

    Only the last parts are compared: names of one namespace have most of their characters in common.
    """
    namespace, _, topic = name.rpartition("/")
    by_topic = {
        full.rpartition("/")[2]: full for full in sorted(names, key=lambda full: full.startswith(f"{namespace}/"))
    }
    near = nearest(topic, by_topic)
    return None if near is None else short_name(by_topic[near])


def _require_measured(given: object, what: str) -> None:
    if not isinstance(given, str):
        raise Refused(f"{what} is {repr(given)[:_SHOWN]}, expected text", hint=_HINT)
    if len(given) > _CHARS_MAX:
        raise Refused(
            f"{what} has {len(given)} characters, at most {_CHARS_MAX} are allowed; the first are {given[:_SHOWN]!r}",
            hint=_HINT,
        )


def _require_seen(text: str, where: str) -> None:
    if hidden := hidden_in(text):
        raise Refused(f"{where} has the character {hidden}, which nobody sees", hint="Leave the character out")


def _require_part(part: str, text: str) -> None:
    if part in ("", ".", ".."):
        raise Refused(f"ledger name {text!r} has the part {part!r}", hint=_HINT)
    _require_text(part, f"ledger name {text!r}")


def _require_text(part: str, where: str) -> None:
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in part) or "\\" in part:
        raise Refused(f"{where} has a control character or backslash in {part!r}", hint=_HINT)
    require_encodable(part, where)
    size = len(part.encode())
    if size > _PART_BYTES_MAX:
        raise Refused(f"{where[:80]} has a part of {size} bytes, at most {_PART_BYTES_MAX} are allowed", hint=_HINT)


PARTITIONS = "ledger.partitions"
PARTITIONS_MAX = 10_000
_SUFFIX = "-partition-"


def partition_name(name: str, partition: int) -> str:
    return f"{name}{_SUFFIX}{partition}"


def partition_names(name: str, partitions: int, first: int = 0) -> list[str]:
    """Return the ledgers of the partitions from `first` on."""
    return [partition_name(name, partition) for partition in range(first, partitions)]


def partition_of(name: str) -> tuple[str, int] | None:
    """Return the partitioned ledger and the partition's number in a name; None for any other name."""
    whole, suffix, number = name.rpartition(_SUFFIX)
    if not (suffix and whole and number.isascii() and number.isdecimal() and str(int(number)) == number):
        return None
    return whole, int(number)


def partition_count(properties: Mapping[str, str]) -> int:
    """Return the number of partitions in a record; 0 for a ledger without partitions."""
    return int(properties.get(PARTITIONS, 0))


def require_partitions(partitions: int) -> None:
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:  # type: ignore[redundant-expr]  # a user's
        raise Refused(f"{partitions!r} partitions were asked for, a ledger has 1 to {PARTITIONS_MAX}")


def logs_among(names: Iterable[str]) -> list[str]:
    """Return the names of logs: partitions, and names that have no partitions."""
    listed = list(names)
    wholes = {part[0] for name in listed if (part := partition_of(name)) is not None}
    return [name for name in listed if name not in wholes]


def without_partitions(names: Iterable[str]) -> list[str]:
    """Return the names without the partitions of others among them."""
    listed = list(names)
    wholes = set(listed)
    return [name for name in listed if (part := partition_of(name)) is None or part[0] not in wholes]
