"""Goal: a topic of any bucket is found by its name, and no other topic is. Method: names of every kind.

`+` and `%` are letters of a topic and escapes of its path. Pulsar's old names have a cluster. A bucket may contain
names that this project's stores refuse.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.names import pulsar_path, topic_text
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_name import spelled, spellings
from tests.rigs.bucket import message, put_segment
from tests.rigs.scan import read_bucket as rows

LONG = "%E4%B8%BB" * 90
PATHS = [
    "public/default/persistent/a+b",
    "public/default/persistent/a%2Bb",
    "public/default/persistent/a%252Bb",
    "public/default/persistent/a%2Fb",
    "prop/use/ns/persistent/t",
    "prop/use/ns/persistent/p-partition-0",
    "a/b/persistent/back%5Cslash",
    "a/b/persistent/tab%09x",
    f"a/b/persistent/{LONG}",
    "a/persistent/persistent/t",
    "of-no-namespace",
]
NAMES = [
    ("a b", "public/default/persistent/a+b"),
    ("a+b", "public/default/persistent/a%2Bb"),
    ("public/default/a+b", "public/default/persistent/a%2Bb"),
    ("public/default/persistent/a%2Bb", "public/default/persistent/a%252Bb"),
    ("a%252Bb", "public/default/persistent/a%252Bb"),
    ("persistent://public/default/a/b", "public/default/persistent/a%2Fb"),
    ("public/default/persistent/a%2Fb", "public/default/persistent/a%2Fb"),
    ("prop/use/ns/t", "prop/use/ns/persistent/t"),
    ("persistent://prop/use/ns/t", "prop/use/ns/persistent/t"),
    ("prop/use/ns/persistent/t", "prop/use/ns/persistent/t"),
    ("prop/use/ns/p", "prop/use/ns/persistent/p-partition-0"),
    ("persistent://a/b/back\\slash", "a/b/persistent/back%5Cslash"),
    ("a/b/tab\tx", "a/b/persistent/tab%09x"),
    ("a/b/" + "主" * 90, f"a/b/persistent/{LONG}"),
    (f"a/b/persistent/{LONG}", f"a/b/persistent/{LONG}"),
    ("a/persistent/t", "a/persistent/persistent/t"),
    ("persistent://a/persistent/t", "a/persistent/persistent/t"),
    ("of-no-namespace", "of-no-namespace"),
]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bucket")
    for number, path in enumerate(PATHS):
        put_segment(directory, 10 + number, [message(number, path.encode())], topic=path)
    return directory


@pytest.mark.parametrize(("name", "path"), NAMES)
def test_a_name_means_one_topic_whose_rows_come_under_it(bucket: Path, name: str, path: str) -> None:
    (row,) = rows(bucket, name, includeMetadata="true")
    assert row["value"] == path.encode()
    assert row["__topic"] == topic_text(spelled(path))


@pytest.mark.parametrize(
    "name", ["ten~ä nt/n+s%20/persistent/tö~* p+%", "a-b_c.d=e:f/ns/persistent/t", "a/b/persistent/~"]
)
def test_a_path_is_ascii_and_comes_back_as_the_name(name: str) -> None:
    path = pulsar_path(name)
    assert path.isascii()
    assert " " not in path
    assert spelled(path) == name
    assert path == name or not name.startswith("a-b")  # Pulsar encodes the topic only


@pytest.mark.parametrize("name", ["non-persistent://public/default/t", "prop/use/ns", "", "/", "///", "persistent://"])
def test_a_name_that_no_topic_has_is_not_found(bucket: Path, name: str) -> None:
    with pytest.raises(NotFound, match="no object is of topic"):
        read_catalogue(open_object_store(bucket)).find(name)


def test_a_topic_is_written_as_pulsars_clients_write_it() -> None:
    assert topic_text("a/b/persistent/c/d") == "persistent://a/b/c/d"
    assert topic_text("a/b/c/persistent/d") == "persistent://a/b/c/d"
    assert topic_text("a/persistent/persistent/d") == "persistent://a/persistent/d"
    assert topic_text("a/b") == "a/b"
    assert spellings("persistent://a/b/c")[0] == spellings("a/b/c")[0] == "a/b/persistent/c"


def test_two_paths_that_are_written_alike_are_told_apart_by_what_they_are(tmp_path: Path) -> None:
    put_segment(tmp_path, 3, [message(0)], topic="a/b/persistent/x+y")
    put_segment(tmp_path, 4, [message(0)], topic="a/b/persistent/x%20y")
    with pytest.raises(
        Refused, match=r"'a/b/persistent/x y' is the name of 'a/b/persistent/x%20y' and 'a/b/persistent/x\+y'"
    ):
        rows(tmp_path, "a/b/x y")
    assert len(rows(tmp_path, "a/b/persistent/x%20y")) == 1
