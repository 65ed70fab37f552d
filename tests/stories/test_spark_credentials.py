"""Goal: broker and tasks of a session use credentials of the environment; wrong credentials are refused and not shown.

Method: a user's script in a separate process with keys in its environment. Spark starts the broker when it plans.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from streaming_examples.s3_server import ACCESS_KEY, S3Server

WRONG = "never-the-right-secret"
SCRIPT = textwrap.dedent(
    """
    import sys
    from pyspark.errors import AnalysisException
    from pyspark_ledger import connect, session

    bucket = sys.argv[1]
    spark = session()
    spark.range(1000).write.format("ledger").mode("append").save("orders")
    store = connect()
    environment = open(f"/proc/{store.client.hello().pid}/environ").read()
    print("spark's own:", [part for part in environment.split("\\0") if part.startswith(("SPARK", "PY", "_"))])
    store.offload_to(bucket)
    print("offload:", store.ledger("orders").offload(seal=True).state)
    read = spark.read.format("ledger").option("offload", bucket)
    print("rows:", read.load("orders").count())
    try:
        read.option("offloadProfile", "wrong").load("orders").count()
    except AnalysisException as error:
        print("refused:", error)
    spark.stop()
    """
)


@pytest.mark.sessions
@pytest.mark.spark
def test_session_with_keys_in_its_environment_offloads_and_reads_a_bucket(
    tmp_path: Path, s3_server: S3Server, bucket: str
) -> None:
    (tmp_path / "keys").write_text(f"[wrong]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {WRONG}\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        **s3_server.environment,
        "AWS_SHARED_CREDENTIALS_FILE": "keys",
        "LEDGER_STORE": str(tmp_path / "store"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, bucket],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "offload: done\nrows: 1000\nrefused:" in done.stdout
    for name in ("SPARK_", "PYSPARK_", "PYTHON_WORKER_FACTORY_SECRET"):
        assert name not in done.stdout.partition("offload:")[0]
    refused = done.stdout.partition("refused:")[2]
    for part in (bucket, "'shared-credentials-file'", "that they had when the session started"):
        assert part in refused
    said = done.stdout + done.stderr + (tmp_path / "store" / "broker.log").read_text()
    for secret in (WRONG, s3_server.environment["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in said
