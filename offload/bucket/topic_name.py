"""Names of topics in a bucket, however a user spells them. Pure.

    tenant/namespace/persistent/local            a managed ledger; what is behind `persistent` is encoded as a URL
    tenant/cluster/namespace/persistent/local    the same with Pulsar's first names, which had a cluster
    persistent://tenant/namespace/local          as a topic; the cluster stands before the namespace here, too

Rules: other people's names are found, not judged: what no store of ours would take (`ledger.names`) may well lie in a
bucket. A name as it is written goes before one as it is encoded, because `a+b` is both a topic and another one's path.
"""

from __future__ import annotations

from urllib.parse import unquote, unquote_plus

_DOMAIN = "persistent"
_SCHEME = f"{_DOMAIN}://"


def spelled(path: str) -> str:
    """A managed ledger's name as a user writes it: Pulsar encodes the last part as a URL."""
    prefix, slash, local = path.rpartition("/")
    return unquote(prefix) + slash + unquote_plus(local)  # in a prefix `+` is none of Pulsar's signs


def spellings(name: str) -> list[str]:
    """The managed ledgers that a name may mean, decoded, the likeliest first."""
    local = name.removeprefix(_SCHEME)
    parts = local.split("/")
    if len(parts) == 1:
        return [f"public/default/{_DOMAIN}/{local}", local]
    at = (2,) if len(parts) == 3 else (3, 2)
    found = ["/".join([*parts[:place], _DOMAIN, *parts[place:]]) for place in at if place < len(parts)]
    stated = not name.startswith(_SCHEME) and _DOMAIN in parts[2:4]
    return [local, *found] if stated else [*found, local]


def topic_text(spelled_path: str) -> str:
    """The topic of a managed ledger as Pulsar's clients write it; what is none stays as it is."""
    parts = spelled_path.split("/")
    for place in (2, 3):
        if len(parts) > place + 1 and parts[place] == _DOMAIN:
            return _SCHEME + "/".join([*parts[:place], *parts[place + 1 :]])
    return spelled_path
