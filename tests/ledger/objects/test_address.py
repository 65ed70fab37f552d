"""Goal: addresses are parsed as users of Hadoop and Pulsar write them, and no secret is shown. Method: tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.objects.address import ObjectAddress


@pytest.mark.parametrize(
    ("text", "bucket", "prefix", "directory"),
    [
        ("s3://flights", "flights", "", None),
        ("s3a://flights/", "flights", "", None),
        ("s3://my.bucket-1/a/b/", "my.bucket-1", "a/b", None),
        ("file:///data/some%20where", "", "", Path("/data/some where")),
        ("/data/objects", "", "", Path("/data/objects")),
    ],
)
def test_an_address_is_read(text: str, bucket: str, prefix: str, directory: Path | None) -> None:
    assert ObjectAddress.parse(text) == ObjectAddress(bucket, prefix, directory)


def test_a_relative_directory_becomes_absolute() -> None:
    assert ObjectAddress.parse("objects").directory == Path("objects").absolute()


def test_a_prefix_stands_before_every_key() -> None:
    assert ObjectAddress.parse("s3://flights/a/b").key("x") == "a/b/x"
    assert ObjectAddress.parse("s3://flights").key("x") == "x"
    assert str(ObjectAddress.parse("s3a://flights/a/")) == "s3://flights/a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("gs://flights", "neither an S3 address"),
        ("s3://ab", "names the bucket 'ab'"),
        ("s3://UPPER", "names the bucket"),
        ("s3://a..b", "names the bucket"),
        ("s3://flights/a//b", "in its prefix"),
        ("s3://flights/../b", "in its prefix"),
        ("s3://flights?x=1", "query"),
        ("file://elsewhere/a", "names the host"),
        ("s3://[flights", r"an unpaired '\[' or '\]'"),
        ("/data/\0", r"U\+0000"),
        ("file:///data/%00", r"U\+0000"),
        ("~nobody-of-this-name/objects", "begins with the home of a user"),
    ],
)
def test_a_wrong_address_is_refused_with_its_value(text: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        ObjectAddress.parse(text)


@pytest.mark.parametrize(
    "text", ["s3://bucket/p?X-Amz-Signature=hunter2", "file:///d#hunter2", "https://b?sig=hunter2"]
)
def test_what_stands_behind_an_address_is_not_shown(text: str) -> None:
    with pytest.raises(Refused, match="has a query or a fragment") as refused:
        ObjectAddress.parse(text)
    assert "hunter2" not in str(refused.value)


def test_a_secret_in_an_address_is_not_shown() -> None:
    with pytest.raises(Refused) as refused:
        ObjectAddress.parse("s3://key:hunter2@flights/a")
    assert "hunter2" not in str(refused.value)
