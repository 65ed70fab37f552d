"""Goal: a LedgerError has one frame of the project and no chain, in every method that Spark calls.

Method: a check of all classes that Spark calls, and failing methods of them.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceWriter

import pyspark_ledger
import pyspark_ledger.connector
from pyspark_ledger.connector import spark_errors
from pyspark_ledger.connector.write.writers import LedgerStreamWriter
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused

pytestmark = pytest.mark.feature("errors in one frame")


def faces() -> list[type]:
    """Return every class whose objects Spark calls, except the doctor's probe, which is sent by value."""
    kinds = (DataSourceReader, DataSourceStreamReader, DataSourceWriter, LedgerStreamWriter)
    walked = pkgutil.walk_packages(pyspark_ledger.connector.__path__, "pyspark_ledger.connector.")
    modules = [importlib.import_module(one.name) for one in walked]
    found = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    ours = (one for one in found if issubclass(one, kinds) and one.__module__.startswith("pyspark_ledger.connector."))
    return sorted((one for one in ours if ".doctor." not in one.__module__), key=lambda one: one.__name__)


@pytest.mark.parametrize("face", [*faces(), pyspark_ledger.DefaultSource], ids=lambda face: face.__name__)
def test_every_method_that_spark_calls_is_wrapped(face: type) -> None:
    own = {"name", *(name for name in vars(face) if name.startswith("_") and name != "__init__")}
    methods = {name: method for name, method in vars(face).items() if callable(method) and name not in own}
    assert methods
    for name, method in methods.items():
        assert hasattr(method, "__wrapped__"), f"{face.__name__}.{name}"


def deep(depth: int = 5) -> None:
    if depth:
        deep(depth - 1)
    try:
        int("from below")
    except ValueError as below:
        raise Corrupt("entry 3 has 1, expected 2", hint="Restore it") from below


@spark_errors.plain_errors
class Reader:
    def partitions(self) -> list[int]:
        deep()
        return []

    def read(self, partition: int) -> Iterator[int]:
        yield partition
        try:
            deep()
        finally:
            pass

    def commit(self) -> None:
        raise ZeroDivisionError


@spark_errors.plain_errors
class Derived(Reader):
    def partitions(self) -> list[int]:
        return super().partitions()

    def read(self, partition: int) -> Iterator[int]:
        return super().read(partition)


CALLS: list[Callable[[Reader], object]] = [lambda one: one.partitions(), lambda one: list(one.read(1))]


@pytest.mark.parametrize("kind", [Reader, Derived])
@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_ours_has_one_frame_and_no_chain(
    kind: type[Reader], call: Callable[[Reader], object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pyspark_ledger.connector.spark_errors")
    with pytest.raises(LedgerError) as raised:
        call(kind())
    ours = [frame.name for frame in traceback.extract_tb(raised.tb) if frame.filename == spark_errors.__file__]
    assert ours == ["call"]
    told = "".join(traceback.format_exception(raised.value))
    assert "from below" not in told
    assert "deep" not in told
    assert told.rstrip().endswith("[LEDGER_CORRUPT] entry 3 has 1, expected 2. Restore it")
    assert "from below" in caplog.text, "the log has the whole of it"


def test_an_error_that_nobody_foresaw_keeps_its_frames() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        Reader().commit()
    assert traceback.extract_tb(raised.tb)[-1].name == "commit"


def test_the_source_itself_has_one_frame() -> None:
    with pytest.raises(Refused) as raised:
        pyspark_ledger.DefaultSource({"startingPosiiton": "earliest"})
    files = [frame.filename for frame in traceback.extract_tb(raised.tb)]
    assert files[1:] == [spark_errors.__file__]
    assert raised.value.__cause__ is raised.value.__context__ is None


@pytest.mark.fault
def test_what_a_user_sees_of_an_error_inside_spark(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    api, root = connect(store), str(Path(pyspark_ledger.__file__).parent)
    for name in ("orders", "damaged"):
        api.ledger(name).append([{"n": 1}])
    (segment,) = api.ledger("damaged").describe().segments
    api.ledger("damaged").seal()
    file = store / "ledgers" / f"{segment.ledger_id}.ledger"
    data = bytearray(file.read_bytes())
    data[api.ledger("damaged").describe().size_bytes // 2] ^= 0xFF
    file.write_bytes(data)
    read = lambda **options: spark_session.read.format("ledger").options(store=str(store), **options)  # noqa: E731
    write = spark_session.range(1).selectExpr("string(id) AS n").write.format("ledger").mode("append")
    large = spark_session.range(1).selectExpr("repeat('a', 70000000) AS s").write.format("ledger").mode("append")

    def stream() -> None:
        rows = (
            spark_session.readStream.format("ledger").options(store=str(store), startingPosition="77:3").load("orders")
        )
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
        query.processAllAvailable()

    for attempt, said in (
        (lambda: read().load("ordres"), "[LEDGER_NOT_FOUND] there is no ledger 'ordres'"),
        (lambda: read(startingPosiiton="latest").load("orders"), "[LEDGER_REFUSED] unknown option"),
        (lambda: read(startingOffsets="latest").load("orders"), "[LEDGER_REFUSED] option 'startingOffsets' belongs to"),
        (lambda: write.option("store", str(store)).save("orders"), "[LEDGER_REFUSED] column 'n'"),
        (lambda: read().load("damaged").collect(), "[LEDGER_CORRUPT] entry"),
        (lambda: large.options(store=str(store), compression="none").save("large"), "[LEDGER_REFUSED] one row"),
        (lambda: spark_session.read.format("ledger").load("x", store="grpc://127.0.0.1:9"), "[LEDGER_UNAVAILABLE]"),
        (stream, "[LEDGER_DATA_LOSS] option 'startingPosition' is 77:3"),
    ):
        with pytest.raises(Exception, match="LEDGER_") as raised:
            attempt()
        told = str(raised.value)
        assert said in told
        assert "direct cause" not in told
        assert "During handling" not in told
        frames = [line for line in told.splitlines() if f'File "{root}/' in line and "site-packages" not in line]
        assert len(frames) == 1, told
