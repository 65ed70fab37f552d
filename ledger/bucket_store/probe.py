"""Probe: a test of a bucket before a store is created there.

It finds servers on which puts with a condition are not atomic.

    create    eight threads put one new key with `If-None-Match: *`: exactly one put must succeed
    replace   eight threads replace one object with the same `If-Match`: exactly one put must succeed
              in both races, the object must then have the bytes of the successful put
    other     a put with an old etag is refused; a read, a range and a list see a write at once; a deletion works

Rules
- A faulty server passes most rounds. So there are hundreds of rounds, and several rounds run at the same time.
- Each error states the round, the expected and the found value. The objects of the probe are deleted at the end.
- A temporary error proves nothing: the step or the round is repeated (`ledger.wal.requests`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import AlreadyExists, LedgerError, NotFound, Refused, Unauthenticated, Unavailable
from pyspark_ledger.ledger.objects.from_settings import CONNECTIONS
from pyspark_ledger.ledger.objects.object_store import FetchedObject, ObjectStore
from pyspark_ledger.ledger.wal.requests import RequestLimits, Retry, repeated

_RACERS = 8
_LANES = CONNECTIONS // _RACERS
PROBE_PREFIX = "probe-"
CREATE_ROUNDS, REPLACE_ROUNDS = 300, 50
CREATION = RequestLimits(refused_ms=0)
"""Limits of the requests that create a store. Credentials that S3 refuses at the start are wrong."""
KEEPS_VERSIONS = (
    "%s keeps old versions of objects. The broker often replaces the manifest and deletes log objects, and each old "
    "version costs storage. Turn versioning off, or let noncurrent versions expire by a lifecycle rule"
)
"""Warning about a bucket with versioning. Its argument is the address."""
_log = logging.getLogger(__name__)
_UNSOUND = "A store needs a bucket with atomic conditional puts. docs/bucket-store.md lists servers that have them"


def probe_bucket(
    bucket: ObjectStore,
    *,
    encryption: str = "",
    create_rounds: int = CREATE_ROUNDS,
    replace_rounds: int = REPLACE_ROUNDS,
    limits: RequestLimits = CREATION,
) -> None:
    """Test all properties of the server that a store needs. Raises Refused at the first violation.

    Also raises the error of a failed request. `encryption` is the encryption of the settings, such as `aws:kms`. If the
    bucket keeps old versions, a warning is logged.
    """
    prefix = f"{PROBE_PREFIX}{new_id()}"
    try:
        repeated(lambda: _try_requests(bucket, f"{prefix}/object-{new_id()}", encryption), limits)
        with ThreadPoolExecutor(_LANES, thread_name_prefix="probe") as lanes:
            races = [
                lanes.submit(_create_lane, bucket, prefix, range(at, create_rounds, _LANES), limits)
                for at in range(_LANES)
            ]
            races.append(lanes.submit(_replace_lane, bucket, prefix, replace_rounds, limits))
            for race in races:
                race.result()
    except BaseException:
        with suppress(LedgerError):  # the first error says more; the collector of the store deletes the objects
            _clean(bucket, prefix)
        raise
    repeated(lambda: _clean(bucket, prefix), limits)


def _clean(bucket: ObjectStore, prefix: str) -> None:
    bucket.delete([found.key for found in bucket.objects(f"{prefix}/")])


def _create_lane(bucket: ObjectStore, prefix: str, rounds: range, limits: RequestLimits) -> None:
    """Race for a new key in each round, one round after another."""
    with ThreadPoolExecutor(_RACERS, thread_name_prefix="racer") as racers:
        for number in rounds:
            _race(bucket, racers, f"{prefix}/create-{number:04d}", "", number, limits)


def _replace_lane(bucket: ObjectStore, prefix: str, rounds: int, limits: RequestLimits) -> None:
    """Race for the replacement of one object in each round."""
    key = f"{prefix}/replace"
    with ThreadPoolExecutor(_RACERS, thread_name_prefix="racer") as racers:
        etag = repeated(lambda: bucket.put(key, b"first"), limits)
        for number in range(rounds):
            etag = _race(bucket, racers, key, etag, number, limits)


def _race(
    bucket: ObjectStore, racers: ThreadPoolExecutor, key: str, etag: str, number: int, limits: RequestLimits
) -> str:
    """Let all racers put one key under the same condition. Return the etag of the winner's object.

    If all puts fail with a temporary error and nothing is stored, the racers put again.
    """
    retry, unknown = Retry(limits, lambda: False), set[int]()
    while True:
        answers = _raced(bucket, racers, key, etag, number)
        failures = {racer: answer for racer, answer in enumerate(answers) if isinstance(answer, Unavailable)}
        unknown |= failures.keys()  # such a put may have succeeded
        winners = [racer for racer, answer in enumerate(answers) if isinstance(answer, str)]
        condition = "If-Match" if etag else "If-None-Match: *"
        if len(winners) > 1:
            raise Refused(
                f"{bucket.address}: in round {number} {len(winners)} of {_RACERS} puts with {condition} succeeded, "
                "expected one",
                hint=_UNSOUND,
            )
        fetched = repeated(lambda: _fetched(bucket, key, len(_body(number, 0))), limits)
        if fetched is not None and fetched.data in [_body(number, racer) for racer in winners or unknown]:
            return fetched.head.etag
        unchanged = ("" if fetched is None else fetched.head.etag) == etag
        if winners or not failures or not unchanged:
            raise Refused(
                f"{bucket.address}: in round {number} the put of racer {winners} succeeded with {condition}, "
                f"the object has {'no bytes' if fetched is None else fetched.data!r}",
                hint=_UNSOUND,
            )
        retry.pause(next(iter(failures.values())))


def _raced(
    bucket: ObjectStore, racers: ThreadPoolExecutor, key: str, etag: str, number: int
) -> list[str | Unavailable | None]:
    """Return for each racer the etag of its object, None if the condition was not met, or a temporary error."""
    ready = threading.Barrier(_RACERS)

    def put(racer: int) -> str | Unavailable | None:
        ready.wait()
        try:
            return bucket.put(key, _body(number, racer), only_new=not etag, if_match=etag)
        except AlreadyExists:
            return None
        except Unavailable as error:
            return error

    return list(racers.map(put, range(_RACERS)))


def _fetched(bucket: ObjectStore, key: str, most: int) -> FetchedObject | None:
    try:
        return bucket.get(key, most)
    except NotFound:
        return None


def _try_requests(bucket: ObjectStore, key: str, encryption: str) -> None:
    """Write, read, list and delete one object, and put with an old etag. Check its encryption and its version."""
    first = bucket.put(key, b"0123456789", only_new=True)
    _require_refused(bucket, "If-None-Match: * on an existing object", lambda: bucket.put(key, b"x", only_new=True))
    second = bucket.put(key, b"abcdefghij", if_match=first)
    _require_refused(bucket, "a stale If-Match", lambda: bucket.put(key, b"x", if_match=first))
    found = bucket.get(key, 10)
    if (found.data, found.head.etag) != (b"abcdefghij", second):
        raise Refused(
            f"{bucket.address}: a read after a write has {found.data!r} with etag {found.head.etag}, "
            f"expected b'abcdefghij' with {second}",
            hint=_UNSOUND,
        )
    if encryption and found.head.encryption != encryption:
        raise Refused(
            f"{bucket.address}: an object has the encryption {found.head.encryption or 'none'}, "
            f"managedLedgerOffloadEncryption is {encryption}",
            hint="Use a server that encrypts, or leave the setting out",
        )
    if found.head.version:
        _log.warning(KEEPS_VERSIONS, bucket.address)
    part = bytes(memoryview(bucket.get_range(key, 2, 3)))
    if part != b"cde":
        raise Refused(f"{bucket.address}: bytes 2 to 4 are {part!r}, expected b'cde'", hint=_UNSOUND)
    listed = [found.key for found in bucket.objects(key)]
    if listed != [key]:
        raise Refused(f"{bucket.address}: a listing after a write has {listed}, expected [{key!r}]", hint=_UNSOUND)
    bucket.delete([key])
    try:
        bucket.get(key, 10)
    except NotFound:
        return
    raise Refused(f"{bucket.address}: {key} can be read after its deletion", hint=_UNSOUND)


def _require_refused(bucket: ObjectStore, what: str, put: Callable[[], object]) -> None:
    try:
        put()
    except AlreadyExists:
        return
    except (Unavailable, Unauthenticated):
        raise
    except LedgerError as error:
        raise Refused(
            f"{bucket.address}: {what} was answered with {error.message}, expected 412", hint=_UNSOUND
        ) from None
    raise Refused(f"{bucket.address}: {what} succeeded, expected 412", hint=_UNSOUND)


def _body(number: int, racer: int) -> bytes:
    return f"round {number:6d} racer {racer}".encode()
