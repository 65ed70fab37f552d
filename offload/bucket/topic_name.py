"""Names of topics in a bucket, and their spellings by users. Pure functions.

    tenant/namespace/persistent/local            Pulsar's name of a ledger; the part after `persistent` is URL-encoded
    tenant/cluster/namespace/persistent/local    Pulsar's old name of a ledger, which contains a cluster
    persistent://tenant/namespace/local          the name of the topic; an old name has the cluster before the namespace

Rules
- Names are not validated, because a bucket may contain topics that `ledger.names` refuses.
- A user's text is first compared with decoded names, then with encoded names. Reason: `a+b` may be the name of one
  topic, and also the encoded name of the topic `a b`.
"""

from __future__ import annotations

from urllib.parse import unquote, unquote_plus

_DOMAIN = "persistent"
_SCHEME = f"{_DOMAIN}://"


def spelled(path: str) -> str:
    """Return a ledger's name as a user writes it. Decodes the last part, which Pulsar URL-encodes."""
    prefix, slash, local = path.rpartition("/")
    return unquote(prefix) + slash + unquote_plus(local)  # in the other parts Pulsar does not encode a space as `+`


def spellings(name: str) -> list[str]:
    """Return the decoded names of the ledgers that a name may mean, the most likely first."""
    local = name.removeprefix(_SCHEME)
    parts = local.split("/")
    if len(parts) == 1:
        return [f"public/default/{_DOMAIN}/{local}", local]
    at = (2,) if len(parts) == 3 else (3, 2)
    found = ["/".join([*parts[:place], _DOMAIN, *parts[place:]]) for place in at if place < len(parts)]
    has_domain = not name.startswith(_SCHEME) and _DOMAIN in parts[2:4]
    return [local, *found] if has_domain else [*found, local]
