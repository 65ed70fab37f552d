"""Goal: a user of another connector is told the option here, and no foreign option is accepted.

Method: every row of the table, in any case; the tables of the pages, in both directions; examples are parsed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_ledger.connector.options.foreign_names import FOREIGN_NAMES, ForeignName, foreign_name
from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.options.table import OPTIONS
from pyspark_ledger.ledger.errors import Refused

ROOT = Path(__file__).resolve().parents[3]
OURS = {option.name for option in OPTIONS}
BY_NAME = {foreign.name: foreign for foreign in FOREIGN_NAMES}
PAGES = sorted({page for foreign in FOREIGN_NAMES for page in foreign.origin.pages})
SECRET = "hunter2"
NOTHING_HERE = "Leave it out: "
EXAMPLE = re.compile(r"'(\w+)'[^';]*? such as ([^;]+)")


def refusal(key: str, value: str = SECRET) -> str:
    with pytest.raises(Refused) as refused:
        read_options({key: value})
    return str(refused.value)


def names_here(words: str) -> set[str]:
    """Options of this source that a text quotes."""
    return set(re.findall(r"'(\w+)'", words))


def rows_of(page: str) -> dict[str, set[str]]:
    """The table of options of a page: by the foreign name, the options here."""
    section = (ROOT / page).read_text(encoding="utf-8").partition("## Options\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    rows = {row[0].strip("`"): set(re.findall(r"`([^`]+)`", row[1])) for row in cells}
    assert len(rows) == len(cells) > 0, "a name has one row"
    return rows


@pytest.mark.parametrize("foreign", FOREIGN_NAMES, ids=lambda foreign: foreign.name)
def test_a_foreign_option_is_refused_in_any_case_by_one_line(foreign: ForeignName) -> None:
    name = foreign.name.replace("*", "Some.password")
    for key in (name, name.lower(), name.upper()):
        said = refusal(key)
        shown = key if foreign.name.endswith("*") else foreign.name
        pages = ", ".join(foreign.origin.pages)
        assert said == f"[LEDGER_REFUSED] option '{shown}' belongs to {foreign.origin.owner}. {foreign.words} ({pages})"
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("foreign", FOREIGN_NAMES, ids=lambda foreign: foreign.name)
def test_the_words_name_options_that_exist_and_values_that_parse(foreign: ForeignName) -> None:
    assert names_here(foreign.words) <= OURS
    examples = EXAMPLE.findall(foreign.words)
    assert len(examples) == foreign.words.count("such as")
    for name, value in examples:
        read_options({name: value})


def test_a_name_of_ours_is_not_foreign_and_is_accepted() -> None:
    assert [option.name for option in OPTIONS if foreign_name(option.name) is not None] == []
    shared = {"startingTimestamp": "5", "endingTimestamp": "6", "failOnDataLoss": "false", "maxBytesPerTrigger": "64m"}
    read = read_options({"path": "orders", "checkpointLocation": "/c", "queryName": "q", **shared})
    assert (read.starting_timestamp, read.max_bytes_per_trigger) == (5, 64 * 1024 * 1024)


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("kafka.sasl.jaas.config", "kafka.sasl.*"),
        ("kafka.ssl.truststore.password", "kafka.ssl.*"),
        ("kafka.ssl.key.password", "kafka.ssl.*"),
        ("kafka.bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.isolation.level", "kafka.*"),
        ("kafka.", "kafka.*"),
        ("kafkaConsumer.pollTimeoutMs", "kafkaConsumer.pollTimeoutMs"),
        ("pulsar.client.authParams", "pulsar.client.authParams"),
        ("pulsar.client.tlsTrustStorePassword", "pulsar.client.tls*"),
        ("pulsar.client.tlsAllowInsecureConnection", "pulsar.client.tls*"),
        ("pulsar.client.useKeyStoreTls", "pulsar.client.*"),
        ("pulsar.admin.authParams", "pulsar.admin.*"),
        ("pulsar.reader.subscriptionName", "pulsar.reader.subscriptionName"),
        ("pulsar.reader.receiverQueueSize", "pulsar.reader.*"),
        ("pulsar.consumer.ackTimeoutMillis", "pulsar.*"),
        ("subscriptionprefix", "subscriptionPrefix"),
    ],
)
def test_the_longest_prefix_counts_and_secrets_are_not_shown(key: str, row: str) -> None:
    assert foreign_name(key) == BY_NAME[row]
    for said in (refusal(key), refusal(key.upper())):
        assert BY_NAME[row].words in said
        assert SECRET not in said


@pytest.mark.parametrize("key", ["kafka", "pulsar", "pulsarClient", "kafkaesque", "startingOffset", "*"])
def test_a_name_that_only_resembles_a_foreign_one_is_unknown(key: str) -> None:
    assert foreign_name(key) is None
    assert f"unknown option '{key}'" in refusal(key)


def test_a_secret_of_ours_is_not_shown_either() -> None:
    assert SECRET not in refusal("authParams", f"token:{SECRET}")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_names_of_the_table_and_the_same_options(page: str) -> None:
    rows = rows_of(page)
    assert rows.keys() - OURS == {foreign.name for foreign in FOREIGN_NAMES if page in foreign.origin.pages}
    for name, here in rows.items():
        assert here <= OURS, name
        if name in OURS:
            assert here == {name}, "a name of ours is accepted as it is"
        elif here:
            assert here == names_here(BY_NAME[name].words), name
        assert bool(here) != (name in BY_NAME and BY_NAME[name].words.startswith(NOTHING_HERE)), name
