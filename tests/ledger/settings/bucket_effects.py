"""Effects of the settings of a store in a bucket: when its log is put, collected and taken over."""

from __future__ import annotations

from pyspark_ledger.ledger.broker import bucket_home
from pyspark_ledger.ledger.bucket_store.home import BucketLimits
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.wal.bucket import MANIFEST
from pyspark_ledger.ledger.wal.manifest import BrokerAddress, StoreManifest, encode_manifest
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives


def limits(broker: DrivenBroker) -> BucketLimits:
    return bucket_home.limits_of(broker.live.now)


def waited_ms(broker: DrivenBroker) -> object:
    """The time for which a broker of another host gets no successor."""
    bucket = open_object_store(broker.folder / "bucket")
    elsewhere = BrokerAddress("grpc+unix:///there.sock", "another-machine/1/1")
    bucket.put(MANIFEST, encode_manifest(StoreManifest("store", "nonce", broker=elsewhere)))
    now = [0]
    with broker.patch.context() as patch:
        patch.setattr(bucket_home, "monotonic_ms", lambda: now[0])
        patch.setattr(bucket_home, "pause", lambda ms: now.__setitem__(0, now[0] + ms))
        found, settings = read_manifest(bucket, RequestLimits()), broker.live.now
        assert bucket_home._unserved(bucket, found, RequestLimits(), settings.bucketTakeoverMs) == found
    return now[0]


DRIVES: Drives = {
    "bucketFlushIntervalMs": [Drive(lambda b: limits(b).requests.flush_interval_ms, 100, {50: 50})],
    "bucketTakeoverMs": [Drive(waited_ms, 30_000, {2_000: 2_000})],
    "bucketCacheBytes": [Drive(lambda b: limits(b).cache_bytes, 0, {2 << 20: 2 << 20})],
}
