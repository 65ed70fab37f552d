"""Goal: a time is exact or refused. Method: forms of ISO 8601, and round trips of random times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.times import TIME_FORMS, parse_time_ms, to_milliseconds

NOON = 1_795_521_600_000  # 2026-11-24T12:00:00Z


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        (" 1700000000000 ", 1_700_000_000_000),
        ("2026-11-24T12:00:00Z", NOON),
        ("2026-11-24 12:00:00+00:00", NOON),
        ("2026-11-24T13:00+01:00", NOON),
        ("2026-11-24T12:00:00.123Z", NOON + 123),
        ("2026-11-24T12:00:00.123000Z", NOON + 123),
        ("2026-11-24T12:00:00,001-00:00", NOON + 1),
        ("1970-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_a_time_is_exact(text: str, milliseconds: int) -> None:
    assert parse_time_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "-1", "1.5", "1e3", "٣", "9" * 30, "9" * 5000, "2026-11-24", "2026-11-24T12:00:00",
        "2026-11-24T12:00:00.1234Z", "2026-11-24T12:00:00.1230001Z", "2026-11-24T12:00:00.123000000Z",
        "2026-02-30T00:00:00Z", "2026-11-24T24:01:00Z", "2026-11-24T23:59:60Z", "1969-12-31T23:59:59Z",
        "2026-11-24T12:00:00 Europe/Berlin", "0001-01-01T00:00:00+23:59",
    ],
)  # fmt: skip
def test_another_text_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="a time with a zone such as") as refused:
        parse_time_ms(text)
    assert str(refused.value) == TIME_FORMS


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)), st.integers(-23, 23))  # noqa: DTZ001
def test_a_time_of_any_zone_comes_back(time: datetime, hours: int) -> None:
    aware = time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=timezone(timedelta(hours=hours)))
    milliseconds = to_milliseconds(aware)
    assert parse_time_ms(aware.isoformat()) == milliseconds
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) == aware


@pytest.mark.parametrize("time", [datetime(2026, 11, 24), -1, 2**63, True, "2026", None, 1.5])  # noqa: DTZ001
def test_no_time_is_refused(time: object) -> None:
    with pytest.raises(ValueError, match="with a zone"):
        to_milliseconds(time)
