"""Options of S3 access: endpoint, source of the credentials, encryption. The options can be pickled.

The options contain no secret. The credentials come from the first of these sources that is set:
1. `credentialProvider` (`ledger.objects.credential_providers`): the process that reads or writes calls a function with
   the address. Reason: some credentials exist only in that process, for example those of Unity Catalog, Databricks'
   catalogue. The function returns a boto3 or botocore session, or a mapping. The mapping has `access_key`,
   `secret_key`, and optionally `token` and `expiry_time` (ISO 8601). The function is called again before `expiry_time`.
2. `profile`: a profile in the configuration files of AWS.
3. boto3's default chain: environment, web identity, container, instance.

If `role` is set, these credentials are used to assume the role. When the role's credentials expire, the role is assumed
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal
from urllib.parse import urlsplit

from pyspark_ledger.ledger.errors import Refused, Unauthenticated
from pyspark_ledger.ledger.objects.credential_providers import is_declared, provided_session, require_provider
from pyspark_ledger.ledger.version import __version__

_ROLE_SESSION = "ledger-offload"
_TIMEOUT_MS = 60_000
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_TEXTS = ("endpoint", "region", "profile", "role", "role_external_id", "credential_provider", "bucket_owner")


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of S3 access without the bucket's name. Empty texts mean the default."""

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    """None means path style if an endpoint is set, as in Pulsar."""
    profile: str = ""
    role: str = ""
    role_external_id: str = ""
    credential_provider: str = ""
    encryption: Literal["", "AES256", "aws:kms"] = ""
    kms_key: str = ""
    bucket_owner: str = ""
    """Id of the account that must own the bucket: twelve digits."""
    connections: int = 16
    attempts: int = 5
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = _TIMEOUT_MS
    advice: str = ""
    """Hint about the source of this process's credentials. Errors about missing or refused credentials contain it."""

    def __post_init__(self) -> None:
        if self.kms_key and self.encryption != "aws:kms":
            raise Refused(
                f"a KMS key was given, but the encryption is {self.encryption or 'none'!r}",
                hint="Set the encryption to aws:kms",
            )
        if self.encryption not in ("", "AES256", "aws:kms"):
            raise Refused(f"encryption is {self.encryption!r}, expected AES256 or aws:kms")
        if self.bucket_owner and not (self.bucket_owner.isdecimal() and len(self.bucket_owner) == 12):
            raise Refused(f"bucket owner is {self.bucket_owner!r}, expected the twelve digits of an account")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise Refused(f"endpoint is {self.endpoint!r}, expected http://… or https://…")
        if "@" in self.endpoint:
            raise Refused("the endpoint contains a user or a password and is therefore not shown")
        if self.credential_provider:
            require_provider(self.credential_provider)

    def completed(self, stated: Mapping[str, Any]) -> S3Options:
        """Return these options, completed by the options of `stated` that are not set here."""
        absent = ("", None)
        added = {name: value for name, value in stated.items() if value not in absent}
        return replace(self, **{name: value for name, value in added.items() if getattr(self, name) in absent})

    def references(self) -> dict[str, str]:
        """Return what gives access to a bucket, for a message. A provider that is not declared is left out."""
        found = {name: str(getattr(self, name)) for name in _TEXTS}
        if not is_declared(self.credential_provider):
            del found["credential_provider"]
        style = {} if self.path_style is None else {"path_style": str(self.path_style).lower()}
        return {name: text for name, text in {**found, **style}.items() if text}

    @classmethod
    def of_references(cls, references: Mapping[str, str]) -> S3Options:
        """Return the options of a message. Raises Refused if it names code, and TypeError for an unknown name."""
        texts = {name: text for name, text in references.items() if name != "path_style"}
        if not texts.keys() <= set(_TEXTS):
            message = f"unknown references {sorted(texts.keys() - set(_TEXTS))}"
            raise TypeError(message)
        provider = texts.get("credential_provider", "")
        if provider and not is_declared(provider):
            raise Refused(f"a message names the credential provider {provider!r}, which this package does not declare")
        style = references.get("path_style")
        return cls(path_style=None if style is None else style == "true", **texts)  # type: ignore[arg-type]  # texts

    def variables(self) -> dict[str, str]:
        """Return the environment variables for a broker that this process starts, and that uses the same bucket.

        boto3 has no variable for a role, and a variable must not name code. `has_variables` tells of these two.
        """
        kind, _, path = self.credential_provider.partition(":")
        found = {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_PROFILE": self.profile,
            "AWS_SHARED_CREDENTIALS_FILE": path if kind == "file" else "",
        }
        return {name: text for name, text in found.items() if text}

    @property
    def has_variables(self) -> bool:
        """Whether `variables` names the whole access."""
        return not self.role and self.credential_provider.partition(":")[0] in ("", "file")

    @property
    def uses_path_style(self) -> bool:
        """Whether the bucket is part of a request's path instead of its host."""
        return bool(self.endpoint) if self.path_style is None else self.path_style

    def request(self) -> dict[str, str]:
        return {"ExpectedBucketOwner": self.bucket_owner} if self.bucket_owner else {}

    def write_request(self) -> dict[str, str]:
        encryption = {"ServerSideEncryption": self.encryption} if self.encryption else {}
        return {**self.request(), **encryption, **({"SSEKMSKeyId": self.kms_key} if self.kms_key else {})}

    def object_store_options(self, address: str) -> dict[str, str]:
        """Return the options for the Rust library `object_store`, including the current credentials."""
        session = self.session(address)
        keys, endpoint = self._keys(session, address), self._endpoint(session)
        by_path = bool(endpoint) if self.path_style is None else self.path_style
        options = {
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            "AWS_SESSION_TOKEN": keys.token,
            "AWS_REGION": self.region or session.region_name or "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true" if endpoint.startswith("http://") else "",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if by_path else "true",
        }
        return {name: value for name, value in options.items() if value}

    def located(self, address: str) -> S3Options:
        """Return the options with endpoint and region, from the environment and the AWS files if they are not set."""
        session = self.session(address)
        return replace(self, endpoint=self._endpoint(session), region=self.region or session.region_name or "")

    def client(self, address: str, *, once: bool = False) -> Any:
        """Return a new client of S3. If `once` is set, the client does not retry, and sends each body at once."""
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
            # Without this text boto3 builds a user agent twice for each request, which takes a tenth of a small
            # request's processor time.
            user_agent=f"pyspark-ledger/{__version__}",
            # Many servers do not support S3's checksums. They are not needed, because every entry has a checksum.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        # Most servers other than Amazon's have no region. But the signature of a request needs a region.
        region = self.region or session.region_name or ("us-east-1" if self.endpoint else None)
        client = session.client("s3", endpoint_url=self.endpoint or None, region_name=region, config=config)
        if once:
            client.meta.events.register_last("before-call.s3", _send_at_once)
        return client

    @property
    def _addressing_style(self) -> str:
        """Addressing style of boto3, which puts the bucket's name into the path or into the host name of a request."""
        if self.path_style is None and not self.endpoint:
            return "auto"
        return "path" if self.uses_path_style else "virtual"

    def session(self, address: str) -> Any:
        """Return a new session of boto3 with the credentials for an address.

        Raises Refused if boto3 is not installed, Unauthenticated if boto3 cannot create the session.
        """
        try:
            import boto3
        except ImportError as missing:
            raise Refused(
                f"{address} needs boto3, which is not installed here", hint="pip install 'pyspark-ledger[s3]'"
            ) from missing
        from botocore.exceptions import BotoCoreError

        try:
            session = (
                self._provider_session(address)
                if self.credential_provider
                else _with_shared_files(boto3.Session(**self._profile_arguments()))
            )
            return self._role_session(session) if self.role else session
        except BotoCoreError as wrong:
            raise Unauthenticated(f"no session for {address}: {wrong}") from None

    def _endpoint(self, session: Any) -> str:
        """Return the endpoint in the options, else in the environment or the AWS files. Empty for Amazon S3."""
        found = self.endpoint or str(self.client_of(session).meta.endpoint_url)
        return "" if (urlsplit(found).hostname or "").endswith(_AMAZON) else found

    def _keys(self, session: Any, address: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = session.get_credentials()
            keys = found and found.get_frozen_credentials()
        except ClientError as refused:
            code = refused.response.get("Error", {}).get("Code", "")
            text = f"no credentials for {address}: {refused.operation_name} answers {code}"
            raise Unauthenticated(text, hint=self.advice) from None
        except BotoCoreError as wrong:
            raise Unauthenticated(f"no credentials for {address}: {wrong}", hint=self.advice) from None
        if keys is None:
            raise Unauthenticated(f"there are no credentials for {address}", hint=self.advice)
        return keys

    def _profile_arguments(self) -> dict[str, str]:
        return {"profile_name": self.profile} if self.profile else {}

    def _provider_session(self, address: str) -> Any:
        import boto3
        from botocore.credentials import Credentials, RefreshableCredentials

        found = self._provided(address)
        if hasattr(found, "client") and hasattr(found, "region_name"):
            return found
        if hasattr(found, "create_client"):
            return _with_shared_files(boto3.Session(botocore_session=found))
        if found.get("expiry_time"):
            credentials = RefreshableCredentials.create_from_metadata(
                _with_token(found), lambda: _with_token(self._provided(address)), "ledger"
            )
        else:
            credentials = Credentials(found["access_key"], found["secret_key"], found.get("token"))
        return _session_of(credentials)

    def _provided(self, address: str) -> Any:
        return provided_session(self.credential_provider, address, self.profile)

    def _role_session(self, session: Any) -> Any:
        from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

        arguments = {"RoleSessionName": _ROLE_SESSION}
        if self.role_external_id:
            arguments["ExternalId"] = self.role_external_id
        source = session.get_credentials()
        if source is None:
            raise Unauthenticated(f"there are no credentials to assume role {self.role!r} with")
        region = self.region or session.region_name or "us-east-1"
        fetcher = AssumeRoleCredentialFetcher(
            lambda service, **rest: session.client(service, **{"region_name": region, **rest}),
            source,
            self.role,
            extra_args=arguments,
        )
        return _session_of(DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role"))


def _send_at_once(params: Any, **_: object) -> None:
    """Send the body of a request without waiting for the server's permission. Reason: the wait takes a round trip."""
    params["headers"].pop("Expect", None)


def _with_token(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": None, **found}


def _session_of(credentials: Any) -> Any:
    import boto3
    from botocore.session import get_session

    session = get_session()
    session._credentials = credentials  # noqa: SLF001 — botocore has no public setter for refreshable credentials
    return _with_shared_files(boto3.Session(botocore_session=session))


def _with_shared_files(session: Any) -> Any:
    """Make all sessions of this process share botocore's parsed description of S3. Returns the session.

    Parsing the description takes most of the time to create a client. The description contains no data of a session.
    """
    own = session._session  # noqa: SLF001 — boto3 has no public access to its session of botocore
    own.register_component("data_loader", _description_loader(own.get_config_variable("data_path")))
    return session


@cache
def _description_loader(data_path: str | None) -> Any:
    from botocore.loaders import create_loader

    return create_loader(data_path)
