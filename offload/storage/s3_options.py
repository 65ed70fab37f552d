"""How a bucket is reached: endpoint, credentials by reference, encryption. A value that pickles and holds no secret.

Where credentials come from, first that is given
1. `credentialProvider`, `module:function`: called with the address in the process that reads or writes, where for
   example Unity Catalog's credentials exist. It answers a boto3 or botocore session, or a mapping with `access_key`,
   `secret_key` and perhaps `token` and `expiry_time` (ISO 8601: called again before it).
2. `profile` of the AWS files.
3. boto3's own chain: environment, web identity, container, instance.
With `role`, what was found is used to assume it, again whenever it expires.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from pyspark_ledger.ledger.errors import Refused, Unauthenticated

ROLE_SESSION = "ledger-offload"
_TIMEOUT_MS = 60_000
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True, slots=True)
class S3Options:
    """Everything but the bucket's name; empty texts are not used."""

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    """None: where an endpoint is named, as Pulsar does."""
    profile: str = ""
    role: str = ""
    role_session_name: str = ROLE_SESSION
    role_external_id: str = ""
    credential_provider: str = ""
    encryption: Literal["", "AES256", "aws:kms"] = ""
    kms_key: str = ""
    bucket_owner: str = ""
    """The account that must own the bucket: twelve digits."""
    connections: int = 16
    attempts: int = 5
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = _TIMEOUT_MS
    advice: str = ""
    """Where this process's credentials come from; part of the error when they are missing or refused."""

    def __post_init__(self) -> None:
        if self.kms_key and self.encryption != "aws:kms":
            raise Refused(f"a KMS key was given, the encryption is {self.encryption or 'none'!r}", hint="Say aws:kms")
        if self.encryption not in ("", "AES256", "aws:kms"):
            raise Refused(f"encryption is {self.encryption!r}, expected AES256 or aws:kms")
        if self.bucket_owner and not (self.bucket_owner.isdecimal() and len(self.bucket_owner) == 12):
            raise Refused(f"bucket owner is {self.bucket_owner!r}, expected the twelve digits of an account")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise Refused(f"endpoint is {self.endpoint!r}, expected http://… or https://…")
        if "@" in self.endpoint:
            raise Refused("the endpoint holds a user or a password, which is not shown here")
        module, _, function = self.credential_provider.partition(":")
        if self.credential_provider and not (module and function):
            raise Refused(f"credential provider is {self.credential_provider!r}, expected module:function")

    @property
    def uses_path_style(self) -> bool:
        """Whether the bucket stands in the path of a request and not in its host."""
        return bool(self.endpoint) if self.path_style is None else self.path_style

    def request(self) -> dict[str, str]:
        return {"ExpectedBucketOwner": self.bucket_owner} if self.bucket_owner else {}

    def write_request(self) -> dict[str, str]:
        said = {"ServerSideEncryption": self.encryption} if self.encryption else {}
        return {**self.request(), **said, **({"SSEKMSKeyId": self.kms_key} if self.kms_key else {})}

    def object_store_options(self, address: str) -> dict[str, str]:
        """The same for Rust's `object_store`, with the credentials as they are now."""
        session = self.session(address)
        keys, endpoint = self._keys(session, address), self._endpoint(session)
        by_path = bool(endpoint) if self.path_style is None else self.path_style
        told = {
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            "AWS_SESSION_TOKEN": keys.token,
            "AWS_REGION": self.region or session.region_name or "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true" if endpoint.startswith("http://") else "",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if by_path else "true",
        }
        return {name: value for name, value in told.items() if value}

    def client(self, address: str, *, once: bool = False) -> Any:
        """A new client of S3, in this process; with `once` it tries everything once."""
        return self.client_of(self.session(address), once=once)

    def client_of(self, session: Any, *, once: bool = False) -> Any:
        from botocore.config import Config

        config = Config(
            s3={"addressing_style": self._addressing_style},
            retries={"mode": "standard", "total_max_attempts": 1 if once else self.attempts},
            connect_timeout=self.connect_timeout_ms / 1000,
            read_timeout=self.read_timeout_ms / 1000,
            max_pool_connections=self.connections,
            tcp_keepalive=True,
            # Trailing checksums are beyond many servers; every entry has a checksum of its own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        # Servers with an endpoint of their own mostly have no region, and the signature wants one.
        region = self.region or session.region_name or ("us-east-1" if self.endpoint else None)
        return session.client("s3", endpoint_url=self.endpoint or None, region_name=region, config=config)

    @property
    def _addressing_style(self) -> str:
        """`auto` without a wish: an endpoint that only boto3 knows, from the environment, is addressed by path."""
        if self.path_style is None and not self.endpoint:
            return "auto"
        return "path" if self.uses_path_style else "virtual"

    def session(self, address: str) -> Any:
        """A new session of boto3 with the credentials for an address, in this process."""
        try:
            import boto3
        except ImportError as missing:
            raise Refused(
                f"{address} needs boto3, which is not installed here", hint="pip install 'pyspark-ledger[s3]'"
            ) from missing
        from botocore.exceptions import BotoCoreError

        try:
            session = self._provided(address) if self.credential_provider else boto3.Session(**self._named())
            return self._assumed(session) if self.role else session
        except BotoCoreError as wrong:
            raise Unauthenticated(f"no session for {address}: {wrong}") from None

    def _endpoint(self, session: Any) -> str:
        """The endpoint of the options, else one that boto3 has from the environment or the AWS files, else none."""
        found = self.endpoint or str(self.client_of(session).meta.endpoint_url)
        return "" if (urlsplit(found).hostname or "").endswith(_AMAZON) else found

    def _keys(self, session: Any, address: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = session.get_credentials()
            keys = found and found.get_frozen_credentials()
        except ClientError as refused:
            code = refused.response.get("Error", {}).get("Code", "")
            said = f"no credentials for {address}: {refused.operation_name} answers {code}"
            raise Unauthenticated(said, hint=self.advice) from None
        except BotoCoreError as wrong:
            raise Unauthenticated(f"no credentials for {address}: {wrong}", hint=self.advice) from None
        if keys is None:
            raise Unauthenticated(f"there are no credentials for {address}", hint=self.advice)
        return keys

    def _named(self) -> dict[str, str]:
        return {"profile_name": self.profile} if self.profile else {}

    def _provided(self, address: str) -> Any:
        import boto3
        from botocore.credentials import Credentials, RefreshableCredentials

        found = self._ask_provider(address)
        if hasattr(found, "client") and hasattr(found, "region_name"):
            return found
        if hasattr(found, "create_client"):
            return boto3.Session(botocore_session=found)
        if found.get("expiry_time"):
            credentials = RefreshableCredentials.create_from_metadata(
                _with_token(found), lambda: _with_token(self._ask_provider(address)), "ledger"
            )
        else:
            credentials = Credentials(found["access_key"], found["secret_key"], found.get("token"))
        return _session_of(credentials)

    def _ask_provider(self, address: str) -> Any:
        module, _, name = self.credential_provider.partition(":")
        where = f"credential provider {self.credential_provider!r}"
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as missing:
            raise Refused(f"{where} cannot be imported: {missing}", hint="Ship its module to every worker") from None
        try:
            found = function(address)
        except Exception as error:  # noqa: BLE001 — only its kind: what it says may hold what it knows
            raise Unauthenticated(f"{where} failed for {address}: {type(error).__name__}") from None
        is_session = hasattr(found, "client") or hasattr(found, "create_client")
        if not is_session and not (isinstance(found, Mapping) and {"access_key", "secret_key"} <= set(found)):
            raise Refused(
                f"{where} answered {type(found).__name__}, expected a session or a mapping with access_key, secret_key"
            )
        return found

    def _assumed(self, session: Any) -> Any:
        from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

        said = {"RoleSessionName": self.role_session_name or ROLE_SESSION}
        if self.role_external_id:
            said["ExternalId"] = self.role_external_id
        source = session.get_credentials()
        if source is None:
            raise Unauthenticated(f"there are no credentials to assume role {self.role!r} with")
        region = self.region or session.region_name or "us-east-1"
        fetcher = AssumeRoleCredentialFetcher(
            lambda service, **rest: session.client(service, **{"region_name": region, **rest}),
            source,
            self.role,
            extra_args=said,
        )
        return _session_of(DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role"))


def _with_token(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": None, **found}


def _session_of(credentials: Any) -> Any:
    import boto3
    from botocore.session import get_session

    session = get_session()
    session._credentials = credentials  # noqa: SLF001 — botocore has no public way to give refreshable ones
    return boto3.Session(botocore_session=session)
