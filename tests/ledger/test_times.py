"""Goal: a written time means one instant or is refused. Method: tables, and texts of random instants read again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.clock import HOST_ZONE
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.times import NotATime, Time, iso_text, milliseconds_of, require_time

BERLIN = ZoneInfo("Europe/Berlin")
MIDNIGHT_MS = 1_795_305_600_000  # 2026-11-22T00:00:00Z
QUARTER_MS = MIDNIGHT_MS + 10 * 3_600_000 + 15 * 60_000
HOUR_MS = 3_600_000
INSTANTS = st.integers(0, 253_370_764_799_999)  # up to the end of 9998


@pytest.fixture(scope="module")
def host_in_berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        (5, 5),
        (-5, -5),
        (2**62, 2**62),
        ("1700000000000", 1_700_000_000_000),
        (" 1700000000000 ", 1_700_000_000_000),
        ("20261122", 20_261_122),
        ("2026-11-22T10:15:00Z", QUARTER_MS),
        ("2026-11-22 10:15Z", QUARTER_MS),
        ("2026-11-22T10:15:00+01:00", QUARTER_MS - HOUR_MS),
        ("2026-11-22T10:15:00-00:30", QUARTER_MS + HOUR_MS // 2),
        ("2026-11-22T10:15:00.1Z", QUARTER_MS + 100),
        ("2026-11-22T10:15:00.123000Z", QUARTER_MS + 123),
        ("2026-11-22 10:15:00.123", QUARTER_MS + 123 - HOUR_MS),
        ("2026-11-22T10:15", QUARTER_MS - HOUR_MS),
        ("2026-11-22", MIDNIGHT_MS - HOUR_MS),
        (date(2026, 11, 22), MIDNIGHT_MS - HOUR_MS),
        ("1970-01-01T00:00:00Z", 0),
        (datetime(2026, 11, 22, 10, 15, tzinfo=UTC), QUARTER_MS),
        (datetime(2026, 11, 22, 10, 15, tzinfo=timezone(timedelta(hours=1))), QUARTER_MS - HOUR_MS),
        (datetime(2026, 11, 22, 10, 15), QUARTER_MS - HOUR_MS),  # noqa: DTZ001 — a local time is the question
    ],
)
def test_each_form_means_one_instant(written: Time, milliseconds: int) -> None:
    assert milliseconds_of(written, BERLIN) == milliseconds


@pytest.mark.parametrize(
    "written",
    [
        "", "noon", "2026-11", "2026-W47-7", "22.11.2026", "2026-13-01", "2026-02-29", "0000-01-01", "10000-01-01",
        "9999-01-01", "0001-01-01", "1969-12-31", "1970-01-01", "2026-11-22T24:00:00Z", "2026-11-22T10Z",
        "2026-06-30T23:59:60Z", "2026-11-22Z", "2026-11-22T10:15:00,5Z", "2026-11-22T10:15:00+0100",
        "2026-11-22T10:15:00+24:00", "2026-11-22T10:15:00 Z", "\uff12026-11-22", "9" * 5000,
        "2026-11-22T10:15:00.1234567890Z", True, 1.5, None,
        datetime(1969, 12, 31, 23, tzinfo=UTC), date(1969, 12, 31), date(9999, 1, 1),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_accepted_forms(written: Time) -> None:
    with pytest.raises(NotATime, match=r"2026-11-22T10:15:00Z|1970-01-01T00:00:00Z"):
        milliseconds_of(written, BERLIN)


@pytest.mark.parametrize(
    "written", ["2026-11-22T10:15:00.1234Z", "2026-11-22T10:15:00.0000001Z", datetime(2026, 11, 22, 0, 0, 0, 1, UTC)]
)
def test_a_fraction_below_a_millisecond_is_refused(written: Time) -> None:
    with pytest.raises(NotATime, match="because the log stores milliseconds"):
        milliseconds_of(written, BERLIN)


@pytest.mark.parametrize("written", ["2026-11-22 10:15", "2026-11-22T10:15:00", datetime(2026, 11, 22, 10, 15)])  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused_where_none_is_known(written: Time) -> None:
    with pytest.raises(NotATime, match=r"2026-11-22T10:15:00Z in UTC or 2026-11-22T10:15:00\+01:00"):
        milliseconds_of(written, None)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (
            "2026-10-25 02:30",
            "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00, because 2026-10-25T02:30:00 occurs twice",
        ),
        (
            "2026-03-29 02:30",
            "2026-03-29T02:30:00+01:00 or 2026-03-29T02:30:00+02:00, because 2026-03-29T02:30:00 is skipped",
        ),
    ],
)
def test_a_time_that_its_zone_has_twice_or_skips_is_refused(host_in_berlin: None, written: str, why: str) -> None:
    for zone, name in ((BERLIN, "Europe/Berlin"), (HOST_ZONE, "the host's local zone")):
        with pytest.raises(NotATime) as refused:
            milliseconds_of(written, zone)
        assert str(refused.value) == f"{why} in {name}"


@given(INSTANTS)
def test_the_host_has_the_times_of_its_zone(host_in_berlin: None, milliseconds: int) -> None:
    local = datetime.fromtimestamp(milliseconds // 1000, BERLIN).replace(tzinfo=None)

    def read(zone: tzinfo) -> int | str:
        try:
            return milliseconds_of(local, zone)
        except NotATime as refused:
            return str(refused).replace(str(zone), "the zone")

    assert read(HOST_ZONE) == read(BERLIN)


@given(INSTANTS)
def test_a_printed_time_is_read_as_the_same_instant(milliseconds: int) -> None:
    assert milliseconds_of(iso_text(milliseconds), None) == milliseconds


def test_a_time_is_printed_with_milliseconds_in_utc() -> None:
    assert iso_text(QUARTER_MS + 7) == "2026-11-22T10:15:00.007Z"
    assert iso_text(-1) == "1969-12-31T23:59:59.999Z"
    assert iso_text(2**62) == str(2**62), "a number that the calendar has no date for"


@pytest.mark.parametrize("written", [2**63, -(2**63) - 1, "1" + "0" * 30])
def test_a_number_that_no_request_can_carry_is_refused(written: Time) -> None:
    with pytest.raises(NotATime, match="a number of milliseconds of 64 bits"):
        milliseconds_of(written, UTC)


def test_a_refusal_names_the_place_and_the_value() -> None:
    assert require_time("--at-time", "5", None) == 5
    with pytest.raises(Refused, match=r"--at-time is 'noon', expected milliseconds since 1970, or a time such as"):
        require_time("--at-time", "noon", None)
    with pytest.raises(Refused, match=r"the time is 2026-11-22 10:15:00, expected a time with its zone, 2026-11-22T10"):
        require_time("the time", datetime(2026, 11, 22, 10, 15), None)  # noqa: DTZ001 — a local time is the question
    with pytest.raises(Refused) as refused:
        require_time("the time", "9" * 10_000, None)
    assert len(str(refused.value)) < 600
