"""Names of topics in a bucket, in any spelling of a user. Pure.

    tenant/namespace/persistent/local            a managed ledger; the part after `persistent` is URL-encoded
    tenant/cluster/namespace/persistent/local    the same with Pulsar's old names, which contain a cluster
    persistent://tenant/namespace/local          as a topic; an old name has the cluster before the namespace

Rules
- Names are not validated: a bucket may contain topics that `ledger.names` would refuse.
- The decoded spelling of a name takes precedence over the encoded one. Reason: `a+b` is a topic and also the path of
  another topic.
"""

from __future__ import annotations

from urllib.parse import unquote, unquote_plus

_DOMAIN = "persistent"
_SCHEME = f"{_DOMAIN}://"


def spelled(path: str) -> str:
    """Return a managed ledger's name as a user writes it: decode the last part, which Pulsar URL-encodes."""
    prefix, slash, local = path.rpartition("/")
    return unquote(prefix) + slash + unquote_plus(local)  # in a prefix Pulsar does not encode `+`


def spellings(name: str) -> list[str]:
    """Return the managed ledgers that a name may mean, decoded, the most likely first."""
    local = name.removeprefix(_SCHEME)
    parts = local.split("/")
    if len(parts) == 1:
        return [f"public/default/{_DOMAIN}/{local}", local]
    at = (2,) if len(parts) == 3 else (3, 2)
    found = ["/".join([*parts[:place], _DOMAIN, *parts[place:]]) for place in at if place < len(parts)]
    has_domain = not name.startswith(_SCHEME) and _DOMAIN in parts[2:4]
    return [local, *found] if has_domain else [*found, local]
