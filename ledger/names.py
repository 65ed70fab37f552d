"""Names of managed ledgers, as Pulsar writes them (`tenant/namespace/persistent/topic`), and of their partitions.

A *tenant* is a group of namespaces. *Topic* is Pulsar's word for a ledger with messages, and `persistent` a fixed word.

Rules of names
- A user writes `orders`, `public/default/orders` or `persistent://public/default/orders` for the same ledger.
  Upper and lower case stay as the user wrote them.
- A name with an empty part, `.`, `..`, a control character or a part of more than 255 bytes is refused. Reason: an
  object store or another system may need a path with the name, although no path on this disk contains it.
- The length of a name is checked before any code scans the text.
- Hidden characters (`ledger.hidden_characters`) are refused in new names only. So an existing ledger whose name has one
  can still be opened, read and deleted.

Rules of partitions
- Partition n of `orders` is the ledger `orders-partition-n`, as in Pulsar.
- The ledger `orders` itself has no entries. Its record has the property `ledger.partitions`, the number of partitions.
- Partitions are numbered from 0, without a gap. Their number never decreases, because messages of a removed partition
  would be lost.
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
_FILE_SCHEMES = frozenset({"s3", "s3a", "s3n", "file", "hdfs", "dbfs", "gs", "abfs", "abfss", "wasbs"})
_HINT = "Use a name such as orders, or tenant/namespace/orders"


def canonical_name(text: str) -> str:
    """Return the canonical name, the full name with four parts, of a name that a user wrote.

    Raises Refused for an invalid name.
    """
    _require_measured(text, "a ledger's name")
    return _canonical(text)


def topic_text(spelled_path: str) -> str:
    """Return a full name as Pulsar's clients write it, `persistent://tenant/namespace/topic`.

    Other names stay unchanged. A name may have a cluster after the tenant, as in Pulsar's first version.
    """
    parts = spelled_path.split("/")
    for place in (2, 3):
        if len(parts) > place + 1 and parts[place] == _DOMAIN:
            return "persistent://" + "/".join([*parts[:place], *parts[place + 1 :]])
    return spelled_path


def require_new_name(canonical: str) -> None:
    """Raise Refused with the code point if the name of a new ledger has a hidden character."""
    _require_seen(canonical, f"ledger name {canonical!r}")


@lru_cache(maxsize=_SPELLINGS_KEPT)
def _canonical(text: str) -> str:
    local = text.removeprefix("persistent://")
    parts = local.split("/")
    if _is_place(local):
        raise Refused(
            f"ledger name {text!r} is the path or the address of a folder",
            hint=f"Give the folder of all ledgers in option 'store', and here only a name. {_HINT}",
        )
    if "://" in local:
        raise Refused(f"ledger name {text!r} has another domain than persistent://", hint=_HINT)
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


def _is_place(text: str) -> bool:
    """Return whether a name looks like a path or an address of files, as other sources take it in `load()`."""
    scheme, separator, _ = text.partition("://")
    return text.startswith(("/", "./", "../")) or (bool(separator) and scheme.lower() in _FILE_SCHEMES)


def namespace_of(canonical: str) -> str:
    """Return the namespace of a canonical name, `tenant/namespace`."""
    tenant, namespace, _, _ = canonical.split("/")
    return f"{tenant}/{namespace}"


def require_namespace(text: str) -> str:
    """Return the namespace that a user wrote. Raises Refused for an invalid namespace."""
    _require_measured(text, "a namespace")
    parts = text.split("/")
    if len(parts) != 2:
        raise Refused(f"namespace {text!r} has {len(parts)} parts, expected 2", hint="Use tenant/namespace")
    for part in parts:
        _require_part(part, text)
    return text


def require_cursor_name(text: str, ledger: str) -> None:
    """Raise Refused if `text` cannot be the name of a cursor. The error quotes the text."""
    _require_measured(text, f"a cursor's name for {ledger!r}")
    where = f"cursor name {text!r} of {ledger!r}"
    if text in ("", ".", ".."):
        raise Refused(f"{where} is not a valid name", hint="Name the subscription")
    _require_text(text, where)


def require_new_cursor_name(text: str, ledger: str) -> None:
    """Raise Refused with the code point if the name of a new cursor has a hidden character."""
    _require_seen(text, f"cursor name {text!r} of {ledger!r}")


def require_property_names(names: Iterable[str], where: str) -> None:
    """Raise Refused with the first name that is not text, is too long or has a hidden character."""
    for name in names:
        _require_measured(name, f"a property's name of {where!r}")
        _require_seen(name, f"property name {name!r} of {where!r}")


def short_name(canonical: str) -> str:
    """Return the shortest spelling of a canonical name."""
    return canonical.removeprefix(f"{_TENANT}/{_NAMESPACE}/{_DOMAIN}/").replace(f"/{_DOMAIN}/", "/", 1)


def pulsar_path(canonical: str) -> str:
    """Return the name as Pulsar's metadata and offloaded objects contain it.

    The last part is encoded like Java's URLEncoder, which encodes the tilde and not the asterisk. Characters that
    Pulsar forbids in a tenant or namespace are encoded too, because an object's user metadata are ASCII.
    """
    prefix, _, topic = canonical.rpartition("/")
    return f"{quote(prefix, safe='/=:')}/{quote_plus(topic, safe='*').replace('~', '%7E')}"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate most similar to a mistyped `name`. Returns None if none is similar or `name` is too long."""
    if len(name) > _CHARS_MAX:
        return None
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def nearest_ledger(name: str, names: Iterable[str]) -> str | None:
    """Return the short name of the ledger that is most similar to a mistyped `name`. Prefers the same namespace.

    Only the last parts are compared, because whole names of one namespace are always similar.
    """
    namespace, _, topic = name.rpartition("/")
    by_topic = {
        full.rpartition("/")[2]: full for full in sorted(names, key=lambda full: full.startswith(f"{namespace}/"))
    }
    near = nearest(topic, by_topic)
    return None if near is None else short_name(by_topic[near])


def _require_measured(given: object, what: str) -> None:
    if not isinstance(given, str):
        shown = " ".join(repr(given)[:_SHOWN].split())  # in one line
        raise Refused(f"{what} is {shown}, expected text", hint=_HINT)
    if len(given) > _CHARS_MAX:
        raise Refused(
            f"{what} has {len(given)} characters, at most {_CHARS_MAX} are allowed; the first are {given[:_SHOWN]!r}",
            hint=_HINT,
        )


def _require_seen(text: str, where: str) -> None:
    if hidden := hidden_in(text):
        raise Refused(f"{where} has the hidden character {hidden}", hint="Leave the character out")


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
    """Return the names of the partitions from number `first` on."""
    return [partition_name(name, partition) for partition in range(first, partitions)]


def partition_of(name: str) -> tuple[str, int] | None:
    """Split a partition's name into the partitioned ledger and the number. Returns None for any other name."""
    whole, suffix, number = name.rpartition(_SUFFIX)
    if not (suffix and whole and number.isascii() and number.isdecimal() and str(int(number)) == number):
        return None
    return whole, int(number)


def partition_count(properties: Mapping[str, str]) -> int:
    """Return the number of partitions in a record; 0 for a ledger without partitions."""
    return int(properties.get(PARTITIONS, 0))


def require_partitions(partitions: int) -> None:
    """Raise Refused if a user's number of partitions is not from 1 to `PARTITIONS_MAX`."""
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:  # type: ignore[redundant-expr]
        raise Refused(f"{partitions!r} partitions were requested, a ledger has 1 to {PARTITIONS_MAX}")


def logs_among(names: Iterable[str]) -> list[str]:
    """Return the names of ledgers with entries of their own: partitions, and ledgers without partitions."""
    listed = list(names)
    wholes = {part[0] for name in listed if (part := partition_of(name)) is not None}
    return [name for name in listed if name not in wholes]


def without_partitions(names: Iterable[str]) -> list[str]:
    """Return the names, except each partition whose partitioned ledger is among them."""
    listed = list(names)
    wholes = set(listed)
    return [name for name in listed if (part := partition_of(name)) is None or part[0] not in wholes]
