"""What S3 says went wrong, as the errors of this project: divided by what the caller can do about it.

Rules: a message names the object, the operation and S3's own code and text, and never the credentials: what S3 sends
back of a signature is left out. What is not known is Unavailable when the server's or the network's, else Refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ledger.errors import AlreadyExists, Corrupt, LedgerError, NotFound, Refused, Unauthenticated, Unavailable

_BY_CODE: dict[str, tuple[type[LedgerError], str]] = {
    **dict.fromkeys(("NoSuchKey", "NoSuchUpload", "404", "NotFound"), (NotFound, "")),
    "NoSuchBucket": (NotFound, "Create the bucket, or correct its name"),
    **dict.fromkeys(("PreconditionFailed", "ConditionalRequestConflict", "412"), (AlreadyExists, "")),
    **dict.fromkeys(("InvalidRange", "416"), (Corrupt, "The object is shorter than its index says")),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "InvalidToken"), (Unauthenticated, "Renew the credentials")
    ),
    **dict.fromkeys(("SlowDown", "RequestTimeout", "Throttling", "TooManyRequests", "429"), (Unavailable, "")),
}
_CREDENTIALS = "Look at the credentials and at the policy of the bucket"
# Operations by which boto3 fetches credentials while it signs a request to S3.
_FETCHES = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "CreateToken", "GetRoleCredentials"})


@contextmanager
def s3_errors(what: str) -> Iterator[None]:
    """Turns what boto3 raises into an error that begins with `what`: the operation and the object."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _answered(error.response, error.operation_name, what) from None
    except BotoCoreError as error:
        raise _unanswered(error, what) from None
    except OSError as error:  # a connection that broke inside of urllib3
        raise Unavailable(f"{what}: {error}") from None


def _answered(response: Any, operation: str, what: str) -> LedgerError:
    said, status = response.get("Error", {}), response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, text = str(said.get("Code", "")), str(said.get("Message", ""))[:300]
    if operation in _FETCHES:
        kind = Unavailable if status >= 500 else Unauthenticated
        return kind(f"{what}: {operation} answers {status} {code}", hint="Look at the role, its trust and the token")
    if status in {401, 403}:
        return Unauthenticated(f"{what}: S3 answers {status} {code}", hint=_CREDENTIALS)
    known, hint = _BY_CODE.get(code) or _BY_CODE.get(str(status)) or (Unavailable if status >= 500 else Refused, "")
    return known(f"{what}: S3 answers {status} {code}" + (f", {text}" if text != code else ""), hint=hint)


def _unanswered(error: Any, what: str) -> LedgerError:
    from botocore import exceptions

    missing = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError)
    if isinstance(error, missing):
        return Unauthenticated(f"{what}: {error}", hint="Name a profile, a role or a credential provider")
    if isinstance(error, (exceptions.ParamValidationError, exceptions.InvalidEndpointDiscoveryConfigurationError)):
        return Refused(f"{what}: {error}")
    if isinstance(error, exceptions.NoRegionError):
        return Refused(f"{what}: {error}", hint="Name the region")
    return Unavailable(f"{what}: {error}")
