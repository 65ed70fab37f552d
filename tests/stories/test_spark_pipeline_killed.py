"""Goal: a pipeline that is killed at random moments stores each row once, and loses none.

Method: each round appends rows, starts a run of the example project, and kills all processes of the run at a random
moment. The next rounds run it again. The last run is not killed. Then the checker compares the target's ids with the
appended ids. LEDGER_FAULT_ROUNDS is the number of kills, by default 20. Run by `make test-pipelines`.
"""

from __future__ import annotations

import logging
import os
import random
import time
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from tests.rigs.available_now import ONE_BATCH
from tests.rigs.pipeline import Pipeline, append_ids, kill, missing_and_repeated

pytest.importorskip("pyspark.pipelines", reason="this Spark has no pipelines")
pytest.importorskip("grpc", reason="pipelines need the packages of Spark Connect: make test-pipelines")

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KILLS = int(os.environ.get("LEDGER_FAULT_ROUNDS") or 20)
ROWS = 300
_log = logging.getLogger(__name__)


@pytest.mark.timeout(600 + 400 * KILLS)
def test_a_pipeline_killed_at_random_stores_each_row_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("LEDGER_FAULT_SEED") or time.time_ns() % 10_000)
    chance, pipeline, rows, runs_s = random.Random(seed), Pipeline(tmp_path / "killed"), 0, 60.0
    pipeline.drop_tables()
    with connect(pipeline.store) as store:
        for number in range(KILLS):
            for ledger in ("orders", "refunds"):
                append_ids(store, ledger, rows, rows + ROWS)
            rows += ROWS
            if number == 0:  # how long a run takes here
                start = time.monotonic()
                code, console = pipeline.run()
                assert code == 0, console[-6000:]
                runs_s = time.monotonic() - start
                continue
            process = pipeline.start()
            # Half of the kills come in the last third of a run, in which its batches are written.
            share = chance.uniform(0.65, 1.05) if number % 2 else chance.uniform(0.2, 1.0)
            time.sleep(share * runs_s)
            ended = process.poll()
            kill(process)
            _log.info("seed %d, round %d: killed after %.0f %% of a run, state %s", seed, number, 100 * share, ended)
            assert_no_row_twice(store, rows)
        # On Spark without admission control, a run after a kill finishes one batch, and the next run reads the others.
        for _ in range(3 if ONE_BATCH else 1):
            code, console = pipeline.run()
            assert code == 0, console[-6000:]
        assert faults(store, rows) == {"orders": (0, 0), "refunds": (0, 0)}, f"seed {seed}"
        for ledger in ("orders", "refunds"):
            assert store.ledger(ledger).cursor("payments").state().backlog_rows == 0
        # The checker finds a planted fault of each kind.
        store.ledger("payments").append([{"id": 0, "amount": 2.0}])
        assert faults(store, rows)["orders"] == (0, 1), "one row twice"
        assert faults(store, rows + 1)["refunds"] == (1, 0), "one row missing"


def faults(store: LedgerStore, rows: int) -> dict[str, tuple[int, int]]:
    """Return the missing and the repeated rows of each source in the target."""
    found = store.ledger("payments").read().to_pydict()
    signed = list(zip(found["id"], found["amount"], strict=True))
    return {
        "orders": missing_and_repeated([number for number, amount in signed if amount > 0], rows),
        "refunds": missing_and_repeated([number for number, amount in signed if amount < 0], rows),
    }


def assert_no_row_twice(store: LedgerStore, rows: int) -> None:
    assert [repeated for _, repeated in faults(store, rows).values()] == [0, 0]
