"""Goal: a demo that cannot begin says what is missing. Method: a session that cannot be had. All else: `make demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from pyspark_ledger.ledger.errors import Unavailable
from streaming_examples import demo


def test_without_the_jars_of_delta_it_ends_with_a_line_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any, **__: Any) -> NoReturn:
        raise Unavailable("no packages", hint="See standard error")

    monkeypatch.setattr(demo, "session", none)
    with pytest.raises(SystemExit) as ended:
        demo.start_spark(tmp_path / "spark.log")
    assert str(ended.value.code).startswith("The demo needs Delta's jars. [LEDGER_UNAVAILABLE] no packages")
    assert str(ended.value.code).endswith(f". See {tmp_path / 'spark.log'}")
