"""Table of S3's errors: the class and the hint of each code. Every request to S3 passes `s3_errors`.

The class of an error tells the caller what to do:

    Unavailable       repeat the request
    Archived          do not repeat the request: a person restores the object first
    Unauthenticated   repeat the request for a short time, because another program may renew the credentials
    AlreadyExists     the condition of a put is not met: another put was first
    other classes     do not repeat the request

Rules
- An error is found by its code, or else by its HTTP status. The answer to a HEAD request has no code.
- Any other error of the server or the network is Unavailable. Any other error of the request is Refused.
- A message names the object, the operation and S3's code and text. It never contains credentials. The text of a
  refusal may repeat the signature of the request; the message leaves out this text.
- 412 and 409 differ: after 412 the condition is not met. After 409 another request was running and nothing was stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark_ledger.ledger.errors import (
    AlreadyExists,
    Archived,
    Corrupt,
    LedgerError,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
)


class Reaction(NamedTuple):
    """Row of the table: the class of the error, and what a person can do."""

    kind: type[LedgerError]
    hint: str = ""


_CREDENTIALS = Reaction(Unauthenticated, "Check the credentials and the policy of the bucket")
_REGION = Reaction(Refused, "Set the region of the bucket, or correct the endpoint")
_REPEATED = (
    *("ConditionalRequestConflict", "OperationAborted", "409"),
    *("SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded", "429"),
    *("BandwidthLimitExceeded", "KMS.ThrottlingException", "RequestTimeout", "408", "IncompleteBody", "BadDigest"),
    *("InternalError", "ServiceUnavailable"),
)

REACTIONS: dict[str, Reaction] = {
    **dict.fromkeys(_REPEATED, Reaction(Unavailable)),
    **dict.fromkeys(("NoSuchKey", "NoSuchUpload", "NoSuchVersion", "NotFound", "404"), Reaction(NotFound)),
    "NoSuchBucket": Reaction(NotFound, "Create the bucket, or correct its name"),
    **dict.fromkeys(("PreconditionFailed", "412"), Reaction(AlreadyExists)),
    **dict.fromkeys(("InvalidRange", "416"), Reaction(Corrupt, "The object is shorter than its index says")),
    "InvalidObjectState": Reaction(Archived, "Restore it, for example with `aws s3api restore-object`, and try again"),
    **dict.fromkeys(("AccessDenied", "401", "403"), _CREDENTIALS),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
        Reaction(Unauthenticated, "Renew the credentials"),
    ),
    "RequestTimeTooSkewed": Reaction(Unauthenticated, "Correct the clock of this host"),
    **dict.fromkeys(("PermanentRedirect", "AuthorizationHeaderMalformed", "301", "307"), _REGION),
    **dict.fromkeys(("NotImplemented", "501"), Reaction(Refused, "Use a server that supports this request")),
    **dict.fromkeys(
        ("KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException"),
        Reaction(Refused, "Check the key managedLedgerOffloadKmsKey"),
    ),
}
# Operations with which boto3 fetches credentials before it signs a request to S3.
_FETCHES = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "CreateToken", "GetRoleCredentials"})


@contextmanager
def s3_errors(what: str) -> Iterator[None]:
    """Convert errors of boto3 to this project's errors. Messages begin with `what`: the operation and the object."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        response, status = error.response, error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if error.operation_name in _FETCHES:
            raise _fetch_error(response, status, error.operation_name, what) from None
        raise s3_error(response.get("Error", {}), what, status) from None
    except BotoCoreError as error:
        raise _error_of_botocore(error, what) from None
    except OSError as error:  # raised by urllib3 for a broken connection
        raise Unavailable(f"{what}: {error}") from None


def s3_error(error: Mapping[str, Any], what: str, status: int = 0) -> LedgerError:
    """Return the error of an answer, or of one object in the answer to a deletion, which has no status."""
    code, text = str(error.get("Code", "")), str(error.get("Message", ""))[:300]
    other = Unavailable if status >= 500 or not status else Refused
    kind, hint = REACTIONS.get(code) or REACTIONS.get(str(status)) or Reaction(other)
    if kind is Archived:
        tier = error.get("StorageClass") or error.get("AccessTier") or "of this object's storage class"
        return Archived(f"{what}: the object is in the archive tier {tier} (S3 answers {status} {code})", hint=hint)
    shown = "" if text in ("", code) or kind is Unauthenticated else f", {text}"
    return kind(f"{what}: S3 answers {status or ''} {code}{shown}".replace("  ", " "), hint=hint)


def _fetch_error(response: Mapping[str, Any], status: int, operation: str, what: str) -> LedgerError:
    kind, code = (Unavailable if status >= 500 else Unauthenticated), response.get("Error", {}).get("Code", "")
    return kind(f"{what}: {operation} answers {status} {code}", hint="Check the role, its trust and the token")


def _error_of_botocore(error: Any, what: str) -> LedgerError:
    from botocore import exceptions

    missing = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError)
    if isinstance(error, missing):
        return Unauthenticated(f"{what}: {error}", hint="Name a profile, a role or a credential provider")
    if isinstance(error, (exceptions.ParamValidationError, exceptions.InvalidEndpointDiscoveryConfigurationError)):
        return Refused(f"{what}: {error}")
    if isinstance(error, exceptions.NoRegionError):
        return Refused(f"{what}: {error}", hint="Name the region")
    return Unavailable(f"{what}: {error}")
