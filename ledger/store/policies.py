"""Policies of ledgers and namespaces (groups of ledgers), read and changed while the broker runs.

Invariants
- If one value of a change is invalid, the whole change is refused. The error names the policy.
- A change is durable before it takes effect. It applies to open ledgers when the call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.policy import (
    effective,
    in_later_names,
    require_names,
    require_offload,
    require_policies,
    require_rollover,
)
from pyspark_ledger.ledger.metadata.policy_records import scopes_of
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.names import namespace_of, require_namespace
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, Policies
from pyspark_ledger.ledger.settings.broker import Settings


class PolicyService:
    """Policies of a store. `opened` returns the open ledgers. `changed` is called after each change."""

    def __init__(
        self,
        metadata: Metadata,
        settings: Settings,
        existing: Callable[[str], str],
        opened: Callable[[], Iterable[ManagedLedger]],
        changed: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._existing = existing
        self._opened = opened
        self._changed = changed

    def change(self, request: ChangePolicy) -> Policies:
        """Set and remove policies of a ledger or a namespace. Return all its policies."""
        scope = self._namespace(request.scope) if request.namespace else self._existing(request.scope)
        request = msgspec.structs.replace(
            request,
            values=in_later_names(request.values, scope),
            forget=list(in_later_names(dict.fromkeys(request.forget, 0), scope)),
        )
        require_names((*request.values, *request.forget), scope)
        both = sorted(set(request.values) & set(request.forget))
        if both:
            raise Refused(f"the request both sets and removes the policies {both} of {scope}")
        if request.values or request.forget:
            self._metadata.policies.change(
                scope,
                values=request.values,
                forget=request.forget,
                check=lambda stated: self._check(scope, stated, namespace=request.namespace),
                ledger=not request.namespace,
            )
            for ledger in self._opened():
                if scope in (namespace_of(ledger.name), *scopes_of(ledger.name)):
                    ledger.refresh_policy()
            self._changed()
        return self._policies(scope, namespace=request.namespace)

    def _policies(self, scope: str, *, namespace: bool) -> Policies:
        records = self._metadata.policies
        if namespace:
            stated = records.stated(scope)
            return Policies(scope, stated, {}, effective(stated, {}, self._settings))
        stated, inherited = records.of_ledger(scope)
        return Policies(scope, stated, inherited, effective(stated, inherited, self._settings))

    def _check(self, scope: str, stated: Mapping[str, int], *, namespace: bool) -> None:
        require_policies(stated, scope)
        inherited = {} if namespace else self._metadata.policies.stated(namespace_of(scope))
        values = effective(stated, inherited, self._settings)
        require_rollover(values, scope)
        require_offload(values, scope)

    def _namespace(self, text: str) -> str:
        namespace = require_namespace(text)
        if any(namespace_of(name) == namespace for name in self._metadata.names()):
            return namespace
        raise NotFound(
            f"there is no ledger in namespace {namespace!r}", hint="Create a ledger in it first, or correct the name"
        )
