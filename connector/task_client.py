"""Client of a task: checks of the task's host, and errors that name the host.

Rules
- Driver and executors must have the same release of this package, because tasks are pickled. A task refuses another
  release before it reads or writes.
- A task may be unable to reach a broker that the driver can reach. So the error names the task's host and the remedies.
- The broker of a store in a bucket can move to another address while a batch runs. A task that can read the bucket
  finds the next broker in the manifest. Any other task fails, and the next batch uses the next broker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark_ledger.connector.connection import local_credentials
from pyspark_ledger.ledger.errors import Unauthenticated, Unavailable, Unsupported
from pyspark_ledger.ledger.version import __version__

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.credentials import Credentials

_ONE_HOST = ("grpc+unix://", "grpc+tls://127.", "grpc://127.", "grpc://localhost", "grpc://[::1]")


def require_release(release: str) -> None:
    """Check the driver's release. Raises Unsupported if this process has another release."""
    if release != __version__:
        raise Unsupported(
            f"the driver has pyspark-ledger {release}, the task's host {os.uname().nodename} has {__version__}",
            hint="Install the same release on the driver and on the executors",
        )


def task_client(address: str, store_id: str, credentials: Credentials, bucket: str = "") -> Client:
    """Return the client of a task. Raises Unavailable with the host's name if the broker does not answer.

    `bucket` is the address of a store in a bucket, else empty.
    """
    from pyspark_ledger.ledger.client.client import client_for

    def follow(client: Client) -> None:
        from pyspark_ledger.ledger.client.manifest_client import follow_broker

        follow_broker(client, bucket)

    try:
        return client_for(address, store_id, local_credentials(credentials), follow if bucket else None)
    except Unavailable as error:
        raise Unavailable(f"a task on {os.uname().nodename}: {error.message}", hint=_remedy(address, bucket)) from None


def _remedy(address: str, bucket: str) -> str:
    if bucket:
        return (
            "Open the broker's port for the hosts of the executors (ledger doctor --platform tests the connection). If "
            "the broker has moved, run the batch again: it uses the next broker. If the hosts of the executors can "
            f"read {bucket}, tasks find the next broker by themselves, and batch reads with option 'broker' = 'none' "
            "need no broker"
        )
    if address.startswith(_ONE_HOST):
        return (
            "Only the broker's host reaches this address. For executors on other hosts call "
            "pyspark_ledger.serve(spark, STORE) on the driver; on the broker's host see broker.log in the store"
        )
    return (
        "If the driver reaches the broker, open the port for the hosts of the executors (ledger doctor --platform "
        "tests the connection). Else see broker.log in the store. A batch read of a store in a bucket needs no broker "
        "with option 'broker' = 'none'"
    )


def bucket_failure(error: Unavailable | Unauthenticated, address: str) -> Unavailable | Unauthenticated:
    """Return the error of a task that cannot read the bucket and has no broker. It names the task's host."""
    return type(error)(
        f"a task on {os.uname().nodename} cannot read {address}: {error.message}",
        hint=error.hint
        or "Open the bucket for the hosts of the executors, or read through the broker, without option 'broker'",
    )
