"""Credential providers that this package declares, and the call of a function of a module.

    file:/run/secrets/aws           a file in the format of ~/.aws/credentials
    unity-catalog:ledger-bucket     a service credential of Unity Catalog, Databricks' catalogue
    module:function                 a function that is installed in the process that reads or writes

Rules
- A name of a provider is a reference, never a secret. So options, plans and messages may contain it.
- Messages between processes, such as the progress of a query, name declared providers only. Reason: a message must not
  name code that its receiver runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark_ledger.ledger.errors import Refused, Unauthenticated
from pyspark_ledger.ledger.location import require_path

FORMS = "file:/path, unity-catalog:NAME or module:function"


def is_declared(provider: str) -> bool:
    """Return whether this package declares a provider. A module cannot have the name of a declared one."""
    return provider.partition(":")[0] in _DECLARED


def require_provider(provider: str) -> None:
    """Raise Refused if a text has not the form of a provider."""
    kind, _, name = provider.partition(":")
    if not (kind and name):
        raise Refused(f"credential provider is {provider!r}, expected {FORMS}")
    if kind == "file" and not Path(name).is_absolute():
        raise Refused(f"credential provider is {provider!r}, expected an absolute path", hint="Write file:/path")


def provided_session(provider: str, address: str, profile: str) -> Any:
    """Return the credentials of a provider for an address: a session of boto3 or botocore, or a mapping.

    `profile` is the section of a provider's file. Raises Refused if the provider is missing here, and Unauthenticated
    if it fails.
    """
    kind, _, name = provider.partition(":")
    where = f"credential provider {provider!r}"
    try:
        function = _DECLARED[kind](name, profile) if kind in _DECLARED else _imported(kind, name)
    except (ImportError, AttributeError) as missing:
        hint = "Install its module on every worker"
        raise Refused(f"{where} cannot be imported: {missing}", hint=_HINTS.get(kind, hint)) from None
    try:
        found = function(address)
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 — only its class is reported, because its text may contain secrets
        raise Unauthenticated(f"{where} failed for {address}: {type(error).__name__}") from None
    is_session = hasattr(found, "client") or hasattr(found, "create_client")
    if not is_session and not (isinstance(found, Mapping) and {"access_key", "secret_key"} <= set(found)):
        raise Refused(
            f"{where} answered {type(found).__name__}, expected a session or a mapping with access_key, secret_key"
        )
    return found


_Provider = Callable[[str], Any]


def _imported(module: str, name: str) -> _Provider:
    function: _Provider = getattr(importlib.import_module(module), name)
    return function


def _file(path: str, profile: str) -> _Provider:
    """Return the provider of a file with keys. boto3 reads the file at each start of a session."""
    from botocore.session import Session

    require_path(path, "the path of a credential provider")

    def session(address: str) -> Any:
        if not Path(path).is_file():
            raise Refused(
                f"credential provider 'file:{path}' for {address}: there is no such file on this host",
                hint="Put the file on the driver's host and every executor's, for example on a volume",
            )
        own = Session(profile=profile or "default")
        own.set_config_variable("credentials_file", path)
        return own

    return session


def _unity_catalog(name: str, _profile: str) -> _Provider:
    """Return the provider of a service credential: by Databricks' module of workers, else by the notebook's object."""
    try:
        from databricks.service_credentials import (  # type: ignore[import-not-found]  # Databricks' own
            getServiceCredentialsProvider,
        )
    except ImportError:
        from databricks.sdk.runtime import dbutils  # type: ignore[import-not-found]  # Databricks' own

        getServiceCredentialsProvider = dbutils.credentials.getServiceCredentialsProvider  # noqa: N806
    return lambda _address: getServiceCredentialsProvider(name)


_DECLARED: dict[str, Callable[[str, str], _Provider]] = {"file": _file, "unity-catalog": _unity_catalog}
_HINTS = {"unity-catalog": "Only Databricks has this provider. Elsewhere name a file: credentialProvider=file:/path"}
