"""Goal: an old bucket that never answers holds up nothing. Method: a proxy before a real S3 holds requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from streaming_examples.s3_server import S3Server
from tests.rigs.deadline import wait_until
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.offload import OffloadRig


def test_new_offloads_and_the_stop_do_not_wait_for_an_old_bucket(
    make_rig: Callable[..., OffloadRig], proxy: FaultProxy, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    rig = make_rig(bucket, replace(s3_server.options, endpoint=proxy.endpoint))
    rig.fill(3, name="gone")
    rig.offload(name="gone")
    assert len(rig.complete("gone")) == 3
    proxy.on("*", "", "stop")
    rig.store.delete_ledger("gone")
    rig.copies.close()
    rig.copies = rig.offloader = ObjectStoreOffloader(str(tmp_path / "new"), s3_server.options)
    payloads = rig.fill(2)
    rig.store.offloads.start()
    wait_until(proxy.reached.is_set, "a deletion in the old bucket")
    rig.store.offloads.offload(OffloadPrefix("log"))
    wait_until(lambda: rig.store.offloads.status("log").state == "done", "the offload to the new bucket")
    assert len(rig.complete()) == 2
    rig.store.offloads.stop()
    assert not proxy.released.is_set(), "the old bucket has not answered yet"
    assert rig.contents() == payloads
    assert len(rig.store.metadata.unwanted.all()) == 3
    proxy.heal()
