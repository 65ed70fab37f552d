"""Goal: many ledgers are one stream within its bounds, without lost or repeated rows, and data loss is reported.

Method: Spark's calls in Spark's order over a real embedded broker, with offsets as JSON text.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.options.positions import positions_json, timestamps_json
from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client.client import client_for
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, TrimLedger
from tests.rigs.scan import rows_of
from tests.rigs.stream import rows, text

ALL, SOME = ReadAllAvailable(), ReadMaxRows(1)
PREFIX = "public/default/persistent/"


class Stream:
    """Query without Spark: batch after batch, with offsets as in a checkpoint."""

    def __init__(self, store: Path, **options: str) -> None:
        source = LedgerSource({"store": str(store), **options}, "0.1.0")
        self.reader: LedgerStreamReader = source.stream_reader(source.schema())
        self.at: dict | None = None

    def batch(self, limit: object = SOME) -> list[int] | None:
        """Return the rows of the next batch; None if no batch is due."""
        if self.at is None:
            self.at = text(self.reader.initialOffset())
        end = text(self.reader.latestOffset(self.at, limit))
        if json.dumps(end) == json.dumps(self.at):
            return None
        start, self.at = self.at, end
        return self.rows(start, end)

    def rows(self, start: dict, end: dict) -> list[int]:
        return rows(self.reader, start, end)

    def resumed(self, at: dict) -> Stream:
        self.at = at
        return self

    def killed(self) -> None:
        """End the query as Spark kills its process: only the heartbeat stops."""
        if self.reader._running is not None and self.reader._running.subscriptions._heartbeat is not None:
            self.reader._running.subscriptions._heartbeat.stop()


def append(ledger: Ledger, *numbers: int) -> None:
    for number in numbers:
        ledger.append(pa.table({"n": pa.array([number], pa.int64())}))


def read(store: Path, **options: str) -> list[int]:
    return sorted(row["n"] for row in rows_of(LedgerSource({"store": str(store), **options}, "0.1.0")))


def small(api: LedgerStore, name: str, *numbers: int) -> Ledger:
    """Create a ledger that rolls over after every entry and trims acknowledged entries."""
    api.client.ask(CreateLedger(PREFIX + name, exist_ok=True, max_entries_per_ledger=1))
    ledger = api.ledger(name)
    append(ledger, *numbers)
    return ledger


def trim(api: LedgerStore, name: str) -> None:
    values = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    api.client.ask(ChangePolicy(name, values=values))
    api.client.ask(TrimLedger(name))


def test_a_list_a_pattern_and_partitions_are_one_stream(store: Path, api: LedgerStore) -> None:
    append(api.ledger("a-1"), 1, 2)
    append(api.ledger("a-2"), 3)
    append(api.ledger("b"), 4)
    clicks = api.create_partitioned("clicks", 2)
    for number, part in enumerate(clicks.partitions()):
        append(part, 10 + number)
    wanted = {
        ("ledgers", "a-1,b"): [1, 2, 4],
        ("ledgersPattern", "a-.*"): [1, 2, 3],
        ("ledgersPattern", ".*"): [1, 2, 3, 4, 10, 11],
        ("path", "clicks"): [10, 11],
        ("path", "clicks-partition-1"): [11],
        ("ledgers", "clicks,a-2"): [3, 10, 11],
    }
    for (option, value), numbers in wanted.items():
        stream = Stream(store, **{option: value}, startingPosition="earliest")
        assert sorted(stream.batch()) == numbers
        assert stream.batch() is None
        stream.reader.stop()
        assert read(store, **{option: value}) == numbers


def test_ledgers_and_partitions_created_later_are_read_from_their_start(store: Path, api: LedgerStore) -> None:
    append(api.ledger("a-1"), 1)
    clicks = api.create_partitioned("a-clicks", 1)
    append(clicks.partitions()[0], 10)
    stream = Stream(store, ledgersPattern="a-.*", startingPosition="latest")
    assert stream.batch() is None
    append(api.ledger("a-2"), 2, 3)
    clicks.increase_partitions(2)
    api.create("a-3")
    append(clicks.partitions()[1], 11)
    append(api.ledger("b"), 99)
    start = stream.at
    assert sorted(stream.batch()) == [2, 3, 11]
    # The same batch in another process, after more appends.
    append(api.ledger("a-2"), 4)
    append(api.ledger("a-3"), 5)
    stream.killed()
    again = Stream(store, ledgersPattern="a-.*", startingPosition="latest")
    assert sorted(again.rows(start, stream.at)) == [2, 3, 11]
    again.at = stream.at
    assert sorted(again.batch()) == [4, 5]
    again.killed()


def test_what_names_none_or_not_all_is_refused_or_waited_for(store: Path, api: LedgerStore) -> None:
    append(api.ledger("orders"), 1)
    with pytest.raises(NotFound, match="Did you mean 'orders'"):
        LedgerSource({"store": str(store), "ledgers": "orders,order"}, "0").schema()
    with pytest.raises(NotFound, match=r"no ledger of the store matches 'x.*'"):
        LedgerSource({"store": str(store), "ledgersPattern": "x.*"}, "0").schema()
    with pytest.raises(NotFound):
        Stream(store, ledgersPattern="x.*", waitForLedger="true", waitTimeoutMs="300")
    append(api.ledger("orders2"), 2)
    stream = Stream(store, ledgers="orders,orders2", startingPosition="earliest")
    stream.batch()
    stream.killed()
    other = Stream(store, path="orders2").resumed(stream.at)
    with pytest.raises(Refused, match=r"the checkpoint is of ledger .*/orders, the query reads .*/orders2"):
        other.batch()
    # A ledger that is added to the list is found like a ledger created later.
    append(api.ledger("orders3"), 3)
    more = Stream(store, ledgers="orders,orders2,orders3").resumed(stream.at)
    assert more.batch() == [3]
    more.killed()


def test_columns_are_those_of_all_and_kinds_do_not_mix(store: Path, api: LedgerStore) -> None:
    append(api.ledger("a"), 1)
    api.ledger("b").append([{"n": 2, "more": "x"}])
    api.ledger("c").append([{"n": "text"}])
    api.ledger("d").append(b"message")
    api.create("empty")
    schema = LedgerSource({"store": str(store), "ledgers": "a,b,empty"}, "0").schema()
    assert schema.names == ["n", "more"]
    assert read(store, ledgers="a,b,empty") == [1, 2]
    with pytest.raises(Refused, match=r"column 'n' is int64 in .*/a and string in .*/c"):
        LedgerSource({"store": str(store), "ledgers": "a,c"}, "0").schema()
    api.ledger("e").append([{"N": 1}])
    with pytest.raises(Refused, match=r"column 'n' of .*/a is 'N' in .*/e.*Spark ignores case"):
        LedgerSource({"store": str(store), "ledgers": "a,e"}, "0").schema()
    with pytest.raises(Refused, match=r"/d holds messages, .*/a has columns"):
        LedgerSource({"store": str(store), "ledgers": "a,d"}, "0").schema()


def test_starts_and_ends_by_ledger_and_time(store: Path, api: LedgerStore) -> None:
    a, b = api.ledger("a"), api.ledger("b")
    append(a, 1, 2, 3)
    append(b, 11, 12, 13)
    second = a.end().start.next()
    both = {"ledgers": "a,b"}
    assert read(store, **both, startingPositions=positions_json({"a": second})) == [2, 3, 11, 12, 13]
    assert read(store, **both, endingPositions=positions_json({"a": second, "b": "latest"})) == [1, 11, 12, 13]
    late = b.end().last_publish_ms + 1
    assert read(store, **both, startingTimestamps=timestamps_json({"b": late})) == [1, 2, 3]
    assert read(store, **both, startingTimestamp=str(late), startingPositions='{"a": "earliest"}') == [1, 2, 3]
    assert read(store, **both, endingTimestamp="0") == []
    assert read(store, **both, endingTimestamp="0", endingPositions='{"b": "latest"}') == [11, 12, 13]
    assert read(store, path="a", startingPosition=str(second), endingPosition=str(second.next())) == [2]
    for options, words in (
        ({"startingPosition": str(second), "endingPosition": str(a.end().start)}, "begins at .* and ends before it"),
        (
            {"startingTimestamps": timestamps_json({"a": late}), "endingPosition": str(second)},
            "ends before it.*startingT",
        ),
        ({"startingPosition": "77:0"}, "'startingPosition' is 77:0, ledger .* begins at"),
    ):
        with pytest.raises((Refused, DataLoss), match=words):
            read(store, path="a", **options)
    api.create_partitioned("clicks", 2)
    with pytest.raises(Refused, match=r"a position in one ledger; .* is one of 2 that are read"):
        read(store, path="clicks", startingPosition="1:0")
    with pytest.raises(Refused, match=r"'startingPositions' is 1:0 for .*/clicks, which is partitioned"):
        read(store, path="clicks", startingPositions='{"clicks": "1:0"}')


def test_a_stream_ends_where_it_is_told_and_limits_may_change_at_a_restart(store: Path, api: LedgerStore) -> None:
    a = api.ledger("a")
    append(a, 1, 2, 3)
    start = a.end().start
    end = f"{start.ledger_id}:{start.entry_id + 4}"
    options = {"path": "a", "startingPosition": "earliest", "endingPosition": end}
    stream = Stream(store, **options, maxRowsPerTrigger="2")
    assert [stream.batch(), stream.batch(), stream.batch()] == [[1, 2], [3], None]
    append(a, 4, 5, 6)
    stream.killed()
    again = Stream(store, **options, maxRowsPerTrigger="1000").resumed(stream.at)
    assert [again.batch(), again.batch()] == [[4], None]
    assert again.reader.reportLatestOffset()["batch"]["endedBy"] == "the end of the read"
    again.killed()
    free = Stream(store, path="a").resumed(again.at)
    assert [free.batch(), free.batch()] == [[5, 6], None]
    free.killed()
    with pytest.raises(Refused, match=r"begins at .* and ends before it"):
        Stream(store, path="a", endingPosition=str(start.next())).batch()


def test_available_now_is_pinned_for_all_ledgers_and_a_limit_is_shared(store: Path, api: LedgerStore) -> None:
    a, b = api.ledger("a"), api.ledger("b")
    append(a, *range(10))
    append(b, 100)
    stream = Stream(store, ledgersPattern="[a-c]", startingPosition="earliest", maxRowsPerTrigger="4")
    stream.reader.prepareForTriggerAvailableNow()
    append(b, 101)
    append(api.ledger("c"), 200)
    batches = []
    while (batch := stream.batch()) is not None:
        batches.append(batch)
    assert sorted(n for batch in batches for n in batch) == [*range(10), 100]
    assert all(len(batch) <= 4 for batch in batches)
    assert 100 in batches[0], "a small ledger is in every batch"
    assert stream.batch(ALL) is None
    report = stream.reader.reportLatestOffset()
    assert report["batch"]["endedBy"] == "availableNow"
    assert report["ledgers"][PREFIX + "b"]["lagRows"] == 1
    stream.killed()
    rest = Stream(store, ledgersPattern="[a-c]", maxRowsPerTrigger="4").resumed(stream.at)
    assert sorted(rest.batch(ALL)) == [101, 200]
    rest.killed()


def test_a_batch_waits_for_rows_but_not_for_ever(store: Path, api: LedgerStore) -> None:
    append(api.ledger("a"), 1)
    options = {"ledgers": "a", "startingPosition": "earliest", "minRowsPerTrigger": "3"}
    stream = Stream(store, **options, maxTriggerDelay="1h")
    assert stream.reader.getDefaultReadLimit().min_rows == 3
    assert stream.batch() is None
    assert stream.reader.reportLatestOffset()["batch"]["endedBy"] == "minRowsPerTrigger"
    append(api.ledger("a"), 2, 3)
    assert stream.batch() == [1, 2, 3]
    append(api.ledger("a"), 4)
    at = stream.at
    assert stream.batch() is None
    assert stream.batch(ALL) == [4]
    stream.killed()
    patient = Stream(store, **options, maxTriggerDelay="0ms").resumed(at)
    assert patient.batch() == [4]
    patient.killed()
    once = Stream(store, **options).resumed(at)
    once.reader.prepareForTriggerAvailableNow()
    assert once.batch() == [4]
    once.killed()


@pytest.mark.thorough
def test_subscription_gets_a_cursor_in_every_ledger_also_in_later_ones(store: Path, api: LedgerStore) -> None:
    a, b = api.ledger("a-1"), api.ledger("a-2")
    append(a, 1, 2)
    append(b, 3)
    options = {"ledgersPattern": "a-.*", "subscription": "s", "startingPosition": "earliest"}
    stream = Stream(store, **options)
    assert sorted(stream.batch()) == [1, 2, 3]
    append(api.ledger("a-3"), 4)
    assert stream.batch() == [4]
    assert [a.cursor("s").state().backlog_rows, b.cursor("s").state().backlog_rows] == [0, 0]
    assert api.ledger("a-3").cursor("s").state().backlog_rows == 1
    assert stream.batch() is None
    assert api.ledger("a-3").cursor("s").state().backlog_rows == 0
    append(a, 5)
    stream.reader.stop()
    # Without the checkpoint, the query starts at its cursors.
    again = Stream(store, **options)
    assert again.batch() == [5]
    second = Stream(store, path="a-2", subscription="s")
    with pytest.raises(Refused, match=r"subscription 's' of .* is read by"):
        second.batch()
    again.reader.stop()


@pytest.mark.parametrize("name", [{}, {"subscription": "s"}])
def test_a_query_that_goes_on_without_a_ledger_is_alive_in_the_others(
    store: Path, api: LedgerStore, name: dict[str, str]
) -> None:
    append(api.ledger("a-1"), 1)
    append(api.ledger("a-2"), 2)
    stream = Stream(store, ledgersPattern="a-.*", startingPosition="earliest", failOnDataLoss="false", **name)
    assert sorted(stream.batch()) == [1, 2]
    api.delete("a-1")
    append(api.ledger("a-2"), 3)
    assert stream.batch() == [3]
    beat = stream.reader._running.subscriptions._heartbeat._beat
    beat()
    append(api.ledger("a-1"), 4)
    assert stream.batch() == [4]
    beat()
    stream.reader.stop()


@pytest.mark.parametrize("restarted", [False, True])
def test_trimmed_entries_fail_the_query_or_are_skipped_and_counted(
    store: Path, api: LedgerStore, restarted: bool
) -> None:
    small(api, "a", 1, 2)
    append(api.ledger("b"), 100)
    options = {"ledgers": "a,b", "startingPosition": "earliest"}
    stream = Stream(store, **options)
    assert sorted(stream.batch()) == [1, 2, 100]
    small(api, "a", 3, 4, 5, 6)
    append(api.ledger("b"), 101)
    trim(api, "a")
    if restarted:
        stream.killed()
        stream = Stream(store, **options).resumed(stream.at)
    at = stream.at
    with pytest.raises(
        DataLoss, match=r"ledger 'a' has lost \[\d+:1, \d+:1\), 3 entries, 3 rows, \d+ bytes: its"
    ) as lost:
        stream.batch()
    assert "retention deleted them" in str(lost.value)
    assert "failOnDataLoss" in str(lost.value)
    stream.killed()
    lossy = Stream(store, **options, failOnDataLoss="false").resumed(at)
    assert sorted(lossy.batch()) == [6, 101]
    assert sorted(lossy.rows(at, lossy.at)) == [6, 101]
    assert lossy.batch() is None
    (said,) = lossy.reader.reportLatestOffset()["dataLoss"]
    assert (said["ledger"], said["cause"], said["entries"], said["rows"]) == (PREFIX + "a", "trimmed", 3, 3)
    lossy.killed()


def test_a_batch_that_is_repeated_after_a_trim_is_an_error_or_what_is_left(store: Path, api: LedgerStore) -> None:
    small(api, "a", 1, 2, 3)
    stream = Stream(store, path="a", startingPosition="earliest")
    start = text(stream.reader.initialOffset())
    assert stream.batch() == [1, 2, 3]
    trim(api, "a")
    stream.killed()
    with pytest.raises(DataLoss, match=r"'a' has lost .*, 2 entries, 2 rows"):
        Stream(store, path="a").rows(start, stream.at)
    assert Stream(store, path="a", failOnDataLoss="false").rows(start, stream.at) == [3]


def test_batch_trimmed_or_deleted_after_planning_fails_or_reads_the_rest(store: Path, api: LedgerStore) -> None:
    small(api, "a", 1, 2, 3)
    append(api.ledger("b"), 100)
    options = {"store": str(store), "ledgers": "a,b"}

    def planned(**more: str) -> tuple[LedgerBatchReader, list[InputPartition]]:
        source = LedgerSource({**options, **more}, "0.1.0")
        reader = source.batch_reader(source.schema())
        return reader, list(reader.partitions())

    def rows(reader: LedgerBatchReader, parts: list[InputPartition]) -> list[int]:
        return sorted(n for part in parts for batch in reader.read(part) for n in batch.column("n").to_pylist())

    strict, lossy = planned(), planned(failOnDataLoss="false")
    trim(api, "a")
    with pytest.raises(DataLoss, match=r"'a' has lost .*, 2 entries, 2 rows"):
        rows(*strict)
    assert rows(*lossy) == [3, 100]
    api.delete("a")
    with pytest.raises(DataLoss, match=r"'a' has lost .*the ledger was deleted"):
        rows(*strict)
    assert rows(*lossy) == [100]


def test_empty_ledger_trimmed_before_its_first_read_has_lost_all_entries(store: Path, api: LedgerStore) -> None:
    small(api, "a")
    append(api.ledger("b"), 100)
    stream = Stream(store, ledgers="a,b", startingPosition="latest")
    assert stream.batch() is None
    small(api, "a", 1, 2, 3)
    trim(api, "a")
    with pytest.raises(DataLoss, match=r"'a' has lost \[-1:0, .*, 2 entries, 2 rows"):
        stream.batch()
    stream.killed()


@pytest.mark.parametrize("again", [False, True])
def test_a_ledger_deleted_or_made_again_is_noticed(store: Path, api: LedgerStore, again: bool) -> None:
    append(api.ledger("a-1"), 1)
    append(api.ledger("a-2"), 2)
    options = {"ledgersPattern": "a-.*", "startingPosition": "earliest"}
    stream = Stream(store, **options)
    start = text(stream.reader.initialOffset())
    assert sorted(stream.batch()) == [1, 2]
    api.delete("a-1")
    if again:
        append(api.ledger("a-1"), 7)
    append(api.ledger("a-2"), 3)
    words = r"deleted and created again" if again else r"the ledger was deleted"
    with pytest.raises(DataLoss, match=rf"ledger 'a-1' has lost .*, their number is unknown: .*{words}"):
        stream.batch()
    with pytest.raises(DataLoss, match=words):
        Stream(store, **options).rows(start, stream.at)
    stream.killed()
    lossy = Stream(store, **options, failOnDataLoss="false").resumed(stream.at)
    assert sorted(lossy.batch()) == ([3, 7] if again else [3])
    assert (PREFIX + "a-1" in lossy.at["ledgers"]) == again
    assert lossy.batch() is None
    assert lossy.reader.reportLatestOffset()["dataLosses"] == 1
    lossy.killed()


def test_a_ledger_that_comes_later_is_delivered_row_by_row_too(store: Path, api: LedgerStore) -> None:
    append(api.ledger("a-1"), 1)
    options = {"ledgersPattern": "a-.*", "startingPosition": "earliest", "subscription": "s", "ackMode": "explicit"}
    stream = Stream(store, **options)
    assert stream.batch() == [1]
    append(api.ledger("a-2"), 2)
    at = stream.at
    assert stream.batch() == [2]
    with pytest.raises(Refused, match=r"was planned for a subscription of .*a-2, and the query names none"):
        Stream(store, ledgersPattern="a-.*").rows(at, stream.at)
    api.delete("a-2")
    append(api.ledger("a-2"), 3)
    with pytest.raises(DataLoss, match=r"'a-2' has lost .*deleted and created again"):
        stream.rows(at, stream.at)
    stream.reader.stop()
    lossy = Stream(store, **options, failOnDataLoss="false")
    assert lossy.rows(at, stream.at) == []
    assert lossy.resumed(stream.at).batch() == [3]
    lossy.reader.stop()


def test_a_file_that_is_missing_is_told_by_the_task(
    store: Path, api: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(api, "a", 1, 2, 3)
    stream = Stream(store, path="a", startingPosition="earliest")
    start = text(stream.reader.initialOffset())
    end = text(stream.reader.latestOffset(start, ALL))
    source = stream.reader.partitions(start, end)[0].value.source
    # Skip the retries for a file that has just been deleted.
    monkeypatch.setattr(client_for(source.address, source.store_id, source.credentials), "deadline_ms", 300)
    first = min((store / "ledgers").glob("*.ledger"), key=lambda path: int(path.stem))
    first.unlink()
    with pytest.raises(DataLoss, match=r"'a' has lost .*their file is missing \(.*Restore the file"):
        stream.rows(start, end)
    stream.killed()
    lossy = Stream(store, path="a", failOnDataLoss="false")
    assert lossy.rows(start, end) == [2, 3]
    lossy.killed()


@pytest.mark.thorough
def test_many_ledgers_are_asked_for_in_as_many_calls_as_one(store: Path, api: LedgerStore) -> None:
    calls: Counter[str] = Counter()
    for number in range(40):
        append(api.ledger(f"a-{number:02}"), number)
    stream = Stream(store, ledgersPattern="a-.*", startingPosition="earliest")
    assert len(stream.batch()) == 40
    for number in range(40):
        append(api.ledger(f"a-{number:02}"), number)
    client = stream.reader._running.read.connection.client
    plain = client.ask
    client.ask = lambda request, **named: (calls.update([request.call.name]), plain(request, **named))[1]
    end = text(stream.reader.latestOffset(stream.at, ALL))
    parts = stream.reader.partitions(stream.at, end)
    assert calls == {"list": 1, "survey": 1, "cache.follow.many": 1}
    assert len(parts) == 1, "small ledgers share a task"
    assert sorted(n for b in stream.reader.read(parts[0]) for n in b.column("n").to_pylist()) == list(range(40))
    assert len(list(stream.reader.read(parts[0]))) == 1, "small batches are joined"
    stream.killed()
