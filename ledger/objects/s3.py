"""Object store in an S3 bucket or a compatible server, through boto3. `ledger.objects.s3_errors` maps its errors.

Rules
- A process creates its clients at its first call. Connections are neither pickled nor inherited by a fork.
- boto3 retries requests with growing pauses. If the body of a reply ends early, this module repeats the request.
- A conditional put is not retried. Reason: if the reply to a put is lost, the object may exist. Then a second put would
  fail, although the first put succeeded.
- A range has exactly the requested length. A range beyond the object's end raises Corrupt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from time import perf_counter
from typing import Any, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import (
    Archived,
    Corrupt,
    LedgerError,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
)
from pyspark_ledger.ledger.metrics.counters import OBJECT_REQUESTS
from pyspark_ledger.ledger.objects.address import ObjectAddress
from pyspark_ledger.ledger.objects.buffer_stream import body_of
from pyspark_ledger.ledger.objects.object_store import (
    PARTS_MAX,
    BegunUpload,
    FetchedObject,
    ListedObject,
    ObjectHead,
    Upload,
    UploadedPart,
    require_key,
    require_metadata,
)
from pyspark_ledger.ledger.objects.s3_errors import s3_error, s3_errors
from pyspark_ledger.ledger.objects.s3_options import S3Options

_DELETE_AT_ONCE = 1000
_STARTED = "ledger.started"
_PAUSE_MS, _PAUSE_MS_MAX = 100, 5_000
_TYPE = "application/octet-stream"
_READ_BYTES = 1024 * 1024  # boto3 copies the bytes that it reads; this amount stays in the processor's cache
# Largest copy by one request. S3 allows 5 GiB, but a copy of 5 GiB can take longer than the time-out.
_COPY_BYTES_MAX = 1024**3
T = TypeVar("T")


class S3Store:
    """Object store in one bucket, with a prefix before every key."""

    def __init__(
        self, address: ObjectAddress, options: S3Options, allocate: Callable[[int], memoryview] | None
    ) -> None:
        self._address = address
        self._options = options
        self._allocate = allocate or _allocate
        self._lock = threading.Lock()
        self._clients: dict[bool, Any] = {}
        self._clients_pid = 0
        self._credential_source = ""

    def __getstate__(self) -> tuple[ObjectAddress, S3Options]:
        return self._address, self._options

    def __setstate__(self, state: tuple[ObjectAddress, S3Options]) -> None:
        self.__init__(*state, None)  # type: ignore[misc]

    @property
    def address(self) -> str:
        return str(self._address)

    def put(
        self,
        key: str,
        data: bytes | Sequence[Buffer],
        metadata: Mapping[str, str] | None = None,
        *,
        only_new: bool = False,
        if_match: str = "",
    ) -> str:
        condition = {"IfNoneMatch": "*"} if only_new else {"IfMatch": f'"{if_match}"'} if if_match else {}
        with self._requesting(f"put {self._url(key)}"):
            answer = self._client(once=bool(condition)).put_object(
                **self._object(key),
                **self._options.write_request(),
                **condition,
                Body=body_of(data),
                ContentType=_TYPE,
                Metadata=require_metadata(metadata, key),
            )
        return _etag(answer)

    def get(self, key: str, most: int) -> FetchedObject:
        def fetch() -> FetchedObject:
            with self._requesting(f"get {self._url(key)}"):
                answer = self._client().get_object(**self._object(key), **self._options.request())
                with closing(answer["Body"]) as body:
                    if answer["ContentLength"] > most:
                        size = answer["ContentLength"]
                        raise Refused(f"{self._url(key)} has {size} bytes, at most {most} were expected")
                    data = body.read()
            self._require_whole(key, len(data), answer["ContentLength"])
            return FetchedObject(data, _head_of(key, answer))

        return self._retry_body(fetch)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        if not length:
            return b""
        wanted = f"bytes={start}-{start + length - 1}"
        data = self._allocate(length)

        def fetch() -> Buffer:
            with self._requesting(f"get {wanted} of {self._url(key)}"):
                answer = self._client().get_object(**self._object(key), **self._options.request(), Range=wanted)
                with closing(answer["Body"]) as body:
                    stated = answer["ContentLength"]
                    if stated != length:
                        raise Corrupt(
                            f"{self._url(key)}: {wanted} was requested, S3 has {answer.get('ContentRange', stated)}"
                        )
                    found = _fill(data, body)
            self._require_whole(key, found, length)
            return data

        return self._retry_body(fetch)

    def head(self, key: str) -> ObjectHead:
        with self._requesting(f"head {self._url(key)}"):
            answer = self._client().head_object(**self._object(key), **self._options.request())
        return _head_of(key, answer)

    def objects(self, prefix: str = "", *, after: str = "") -> Iterator[ListedObject]:
        request = {"Bucket": self._address.bucket, "Prefix": self._address.key(prefix), **self._options.request()}
        if after:
            request["StartAfter"] = self._address.key(after)
        skip = len(self._address.key(""))
        while True:
            with self._requesting(f"list {self.address}"):
                page = self._client().list_objects_v2(**request)
            for found in page.get("Contents", ()):
                modified_ms = int(found["LastModified"].timestamp() * 1000)
                yield ListedObject(found["Key"][skip:], found["Size"], modified_ms)
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, up to a thousand by one request. Raises the first error of an object."""
        remaining = iter(keys)
        while names := list(islice(remaining, _DELETE_AT_ONCE)):
            listed = [{"Key": self._address.key(require_key(name))} for name in names]
            with self._requesting(f"delete {len(names)} objects of {self.address}, {names[0]!r} the first"):
                answer = self._client().delete_objects(
                    Bucket=self._address.bucket,
                    Delete={"Objects": listed, "Quiet": True},
                    **self._options.request(),
                )
                failed = [error for error in answer.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
                if failed:
                    what = f"{len(failed)} of {len(names)} objects of {self.address} were not deleted, the first is"
                    raise s3_error(failed[0], f"{what} {failed[0].get('Key')!r}")

    def begin_upload(self, key: str, metadata: Mapping[str, str] | None = None) -> Upload:
        with self._requesting(f"begin {self._url(key)}"):
            answer = self._client().create_multipart_upload(
                **self._object(key),
                **self._options.write_request(),
                ContentType=_TYPE,
                Metadata=require_metadata(metadata, key),
            )
        return Upload(key, answer["UploadId"])

    def put_part(self, upload: Upload, number: int, data: bytes | Sequence[Buffer], size: int) -> UploadedPart:
        if not 1 <= number <= PARTS_MAX:
            raise Refused(f"part {number} of {upload.key!r} is outside 1 to {PARTS_MAX}")
        with self._requesting(f"put part {number} of {self._url(upload.key)}"):
            answer = self._client().upload_part(
                **self._part_of(upload), PartNumber=number, Body=body_of(data), ContentLength=size
            )
        return UploadedPart(number, _etag(answer), size)

    def parts(self, upload: Upload) -> list[UploadedPart]:
        found: dict[int, tuple[Any, UploadedPart]] = {}
        after = 0
        while True:
            with self._requesting(f"list the parts of {self._url(upload.key)}"):
                page = self._client().list_parts(**self._part_of(upload), PartNumberMarker=after)
            for listed in page.get("Parts", ()):
                part = (listed["LastModified"], UploadedPart(listed["PartNumber"], _etag(listed), listed["Size"]))
                found[part[1].number] = max(found.get(part[1].number, part), part)
            if not page.get("IsTruncated"):
                return [found[number][1] for number in sorted(found)]
            after = page["NextPartNumberMarker"]

    def complete(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        if not parts:
            raise Refused(f"upload {upload.upload_id} of {upload.key!r} cannot be completed without a part")
        listed = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]
        try:
            with self._requesting(f"complete {self._url(upload.key)}"):
                self._client().complete_multipart_upload(**self._part_of(upload), MultipartUpload={"Parts": listed})
        except NotFound:
            # The answer to an earlier request may have been lost. In this case the object exists.
            self._require_completed(upload, sum(part.size for part in parts))

    def abort(self, upload: Upload) -> None:
        try:
            with self._requesting(f"abort {self._url(upload.key)}"):
                self._client().abort_multipart_upload(**self._part_of(upload))
        except NotFound:
            return

    def copy(self, source: str, key: str, metadata: Mapping[str, str] | None = None) -> None:
        size = self.head(source).size
        if size > _COPY_BYTES_MAX:
            self._copy_parts(source, key, metadata, size)
            return
        with self._requesting(f"copy {self._url(source)} to {self._url(key)}"):
            self._client().copy_object(
                **self._object(key),
                **self._options.write_request(),
                CopySource=self._object(source),
                ContentType=_TYPE,
                Metadata=require_metadata(metadata, key),
                MetadataDirective="REPLACE",
            )

    def _copy_parts(self, source: str, key: str, metadata: Mapping[str, str] | None, size: int) -> None:
        """Copy an object that is too large for one request."""
        upload = self.begin_upload(key, metadata)
        try:
            parts = []
            for number, start in enumerate(range(0, size, _COPY_BYTES_MAX), start=1):
                length = min(_COPY_BYTES_MAX, size - start)
                with self._requesting(f"copy part {number} of {self._url(source)} to {self._url(key)}"):
                    answer = self._client().upload_part_copy(
                        **self._part_of(upload),
                        PartNumber=number,
                        CopySource=self._object(source),
                        CopySourceRange=f"bytes={start}-{start + length - 1}",
                    )
                parts.append(UploadedPart(number, _etag(answer["CopyPartResult"]), length))
            self.complete(upload, parts)
        except BaseException:
            with suppress(LedgerError):
                self.abort(upload)
            raise

    def uploads(self, prefix: str = "") -> Iterator[Upload]:
        return (found.upload for found in self.begun_uploads(prefix))

    def begun_uploads(self, prefix: str = "") -> Iterator[BegunUpload]:
        request = {"Bucket": self._address.bucket, "Prefix": self._address.key(prefix), **self._options.request()}
        skip = len(self._address.key(""))
        while True:
            with self._requesting(f"list the uploads of {self.address}"):
                page = self._client().list_multipart_uploads(**request)
            for found in page.get("Uploads", ()):
                begun_ms = int(found["Initiated"].timestamp() * 1000)
                yield BegunUpload(Upload(found["Key"][skip:], found["UploadId"]), begun_ms)
            if not page.get("IsTruncated"):
                return
            request["KeyMarker"], request["UploadIdMarker"] = page["NextKeyMarker"], page["NextUploadIdMarker"]

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients = {}

    def _client(self, *, once: bool = False) -> Any:
        with self._lock:
            if self._clients_pid != os.getpid():
                self._clients, self._clients_pid = {}, os.getpid()
            if once not in self._clients:
                session = self._options.session(self.address)
                self._credential_source = getattr(session.get_credentials(), "method", "")
                self._clients[once] = self._options.client_of(session, once=once)
                events = self._clients[once].meta.events
                events.register("request-created.s3", _note_start)
                events.register("response-received.s3", _count_request)
            return self._clients[once]

    @contextmanager
    def _requesting(self, what: str) -> Iterator[None]:
        """Convert errors of boto3 to this project's errors. Messages begin with `what`: the operation and the object.

        If credentials are missing or refused, the boto3 clients are dropped. So the next request loads the credentials
        again.
        """
        try:
            with s3_errors(what):
                yield
        except Unauthenticated as refused:
            with self._lock:
                self._clients, found_by = {}, self._credential_source
            source = f" (credentials found by {found_by!r})" if found_by else ""
            hint = ". ".join(filter(None, (refused.hint, self._options.advice)))
            raise Unauthenticated(f"{refused.message}{source}", hint=hint) from None

    def _object(self, key: str) -> dict[str, str]:
        return {"Bucket": self._address.bucket, "Key": self._address.key(require_key(key))}

    def _part_of(self, upload: Upload) -> dict[str, str]:
        return {**self._object(upload.key), "UploadId": upload.upload_id, **self._options.request()}

    def _url(self, key: str) -> str:
        return f"s3://{self._address.bucket}/{self._address.key(key)}"

    def _retry_body(self, fetch: Callable[[], T]) -> T:
        """Return the result of `fetch`. If the body of the reply ends early, retry, because boto3 does not."""
        for attempt in range(self._options.attempts - 1):
            try:
                return fetch()
            except Archived:
                raise
            except Unavailable:
                pause(min(_PAUSE_MS << attempt, _PAUSE_MS_MAX))
        return fetch()

    def _require_whole(self, key: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise Unavailable(f"the body of {self._url(key)} broke off after {found} of {wanted} bytes")

    def _require_completed(self, upload: Upload, size: int) -> None:
        head = self.head(upload.key)
        if head.size != size:
            raise Corrupt(f"{self._url(upload.key)} has {head.size} bytes, its parts had {size}")


def _note_start(request: Any, **_: Any) -> None:
    """Record the start time of a request, or of its retry, in boto3's context, where `_count_request` reads it."""
    request.context[_STARTED] = perf_counter()


def _count_request(
    event_name: str, context: Mapping[str, Any], parsed_response: Mapping[str, Any] | None = None, **_: Any
) -> None:
    """Count a request or its retry, with the seconds until the answer begins.

    A request without an answer counts as failed.
    """
    status = (parsed_response or {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    seconds = perf_counter() - context[_STARTED]
    OBJECT_REQUESTS.add(event_name.rpartition(".")[2], seconds, failed=not 0 < status < 400)


def _allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _fill(data: memoryview, body: Any) -> int:
    """Read a body into `data`. Returns the number of bytes, which is smaller than `data` if the body ends early."""
    filled = 0
    while filled < len(data):
        found = body.readinto(data[filled : filled + _READ_BYTES])
        if not found:
            break
        filled += found
    return filled


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')


def _head_of(key: str, answer: Mapping[str, Any]) -> ObjectHead:
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    version = answer.get("VersionId", "")
    if version == "null":  # versioning was suspended: the next put replaces this object
        version = ""
    encryption = answer.get("ServerSideEncryption", "")
    modified_ms = int(answer["LastModified"].timestamp() * 1000)
    return ObjectHead(key, answer["ContentLength"], _etag(answer), metadata, version, encryption, modified_ms)
