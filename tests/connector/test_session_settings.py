"""Goal: a session that is made here suits one machine; one that is there keeps what it was given.

Method: a builder that writes down what it is told, in place of Spark's.
"""

from __future__ import annotations

from typing import Any, Self

import pytest

from connector import session


class Builder:
    """Takes settings, and makes nothing."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, _: str) -> Self:  # noqa: N802 — Spark's
        return self

    def master(self, _: str) -> Self:
        return self

    def config(self, name: str, value: str) -> Self:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Self:  # noqa: N802 — Spark's
        return self


def made(monkeypatch: pytest.MonkeyPatch, *, running: bool, conf: dict[str, object]) -> dict[str, str]:
    class Session:
        builder = Builder()

        @staticmethod
        def getActiveSession() -> object | None:  # noqa: N802 — Spark's
            return object() if running else None

    def configured(spark: Any, *, quiet: bool) -> Any:
        assert quiet
        return spark

    monkeypatch.setattr("pyspark.sql.SparkSession", Session)
    monkeypatch.setattr(session, "configure_session", configured)
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python")
    session.local_session("app", conf)
    return Session.builder.settings


def test_a_session_that_is_made_writes_few_parts_after_a_shuffle_unless_it_is_told_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "spark.sql.shuffle.partitions"
    assert made(monkeypatch, running=False, conf={})[name] == "8"
    assert made(monkeypatch, running=False, conf={name: 3})[name] == "3"
    assert made(monkeypatch, running=False, conf={"spark_sql_shuffle_partitions": 3})[name] == "3"


def test_a_session_that_runs_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = made(monkeypatch, running=True, conf={})
    assert "spark.sql.shuffle.partitions" not in settings
    assert settings["spark.sql.session.timeZone"] == "UTC"
