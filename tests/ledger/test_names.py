"""Goal: every spelling of a name means one ledger, what could not be a name is refused. Method: tables, hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import (
    canonical_name,
    nearest,
    nearest_ledger,
    pulsar_path,
    require_new_name,
    short_name,
)

PARTS = st.one_of(
    st.sampled_from(["persistent", "public", "default", "orders", "a b", "é", "~", "…"]),
    st.text(
        st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"), exclude_characters="/\\"),
        min_size=1,
        max_size=40,
    ),
).filter(lambda part: part not in (".", ".."))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("orders", "public/default/persistent/orders"),
        ("t/n/x", "t/n/persistent/x"),
        ("t/n/persistent/x", "t/n/persistent/x"),
        ("persistent://t/n/x", "t/n/persistent/x"),
        ("persistent", "public/default/persistent/persistent"),
        ("t/persistent/x", "t/persistent/persistent/x"),
        ("...", "public/default/persistent/..."),
        ("Ünï cödé", "public/default/persistent/Ünï cödé"),
        ("x" * 255, "public/default/persistent/" + "x" * 255),
    ],
)
def test_spellings_of_one_ledger(text: str, canonical: str) -> None:
    assert canonical_name(text) == canonical
    assert canonical_name(canonical) == canonical


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "''"),
        ("..", "'..'"),
        ("t/../x", "'..'"),
        ("./n/x", "path or the address of a folder"),
        ("t//x", "''"),
        ("/n/x", "path or the address of a folder"),
        ("t/n/x/", "''"),
        ("a\0b", r"'a\\x00b'"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "control"),
        ("a\\b", "backslash"),
        ("\ud800", r"not valid Unicode: U\+D800"),
        ("x" * 10_000_000, "10000000 characters, at most 1024"),
        ("x" * 256, "256 bytes, at most 255"),
        ("é" * 128, "256 bytes, at most 255"),
        ("t/x", "2 parts"),
        ("t/n/other/x", "4 parts"),
        ("a/b/persistent/c/d", "5 parts"),
        ("persistent://x", "1 parts after"),
        ("persistent://t/n/persistent/x", "4 parts after"),
        ("non-persistent://t/n/x", "another domain"),
        ("s3://bucket/x", "in option .store."),
        ("persistent://persistent://x", "another domain"),
    ],
)
def test_what_is_no_name_is_refused_with_the_value(text: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        canonical_name(text)


@given(PARTS, PARTS, PARTS)
def test_the_short_spelling_means_the_same_ledger(tenant: str, namespace: str, topic: str) -> None:
    canonical = canonical_name(f"{tenant}/{namespace}/persistent/{topic}")
    assert canonical_name(short_name(canonical)) == canonical
    assert len(short_name(canonical)) <= len(canonical)


@pytest.mark.parametrize(
    ("topic", "encoded"),
    [
        # java.net.URLEncoder: letters, digits and .-*_ stay, a space is +, the rest is its UTF-8 in hex.
        ("orders-partition-0", "orders-partition-0"),
        ("a b", "a+b"),
        ("a+b", "a%2Bb"),
        ("a~b", "a%7Eb"),
        ("*-._", "*-._"),
        ("é:%", "%C3%A9%3A%25"),
    ],
)
def test_a_path_is_encoded_as_java_does(topic: str, encoded: str) -> None:
    assert pulsar_path(canonical_name(topic)) == f"public/default/persistent/{encoded}"


@pytest.mark.parametrize("char", ["\u202e", "\u2066", "\u200e", "\u061c", "\u200d", "\u2028", "\x00", "\ud800"])
def test_hidden_character_is_refused_in_a_new_name_and_shown_by_its_code(char: str) -> None:
    with pytest.raises(Refused, match=rf"U\+{ord(char):04X}") as refused:
        require_new_name(f"public/default/persistent/a{char}b")
    assert char not in str(refused.value)


@given(PARTS)
def test_a_name_that_can_be_seen_is_new(part: str) -> None:
    require_new_name(canonical_name(part))


def test_the_nearest_name() -> None:
    assert nearest("x" * 10_000_000, ["orders"]) is None
    assert nearest("ordres", ["payments", "orders"]) == "orders"
    assert nearest("ORDERS", ["Orders"]) == "Orders"
    assert nearest("orders", []) is None
    assert nearest("orders", ["zzz"]) is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("order", "orders"),
        ("acme/shop/order", "acme/shop/orders"),
        ("acme/shop/clicks", None),
        ("acme/shp/payments", "acme/shop/payments"),
        ("payment", "acme/shop/payments"),
        ("nope", None),
    ],
)
def test_the_nearest_ledger_is_not_one_of_the_same_namespace_alone(typed: str, meant: str | None) -> None:
    names = [canonical_name(name) for name in ("a", "orders", "acme/shop/orders", "acme/shop/payments")]
    assert nearest_ledger(canonical_name(typed), names) == meant


@pytest.mark.parametrize("text", ["/mnt/x", "./orders", "s3://lake/orders", "S3A://lake", "file:///mnt/x"])
def test_the_path_of_a_folder_is_no_name_and_belongs_into_store(text: str) -> None:
    with pytest.raises(Refused, match=r"is the path or the address of a folder\. Give the folder .* in option 'store'"):
        canonical_name(text)
