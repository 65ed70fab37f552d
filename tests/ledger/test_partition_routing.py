"""Goal: keys go where Pulsar's Java client sends them. Method: the values that its own tests state; columns against
keys one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.partition_routing import (
    HASHES,
    java_string,
    murmur3_32,
    partition_for_key,
    partitions_for_keys,
    require_hashing_scheme,
)

# Stated alike by the tests of Pulsar's Java and C++ clients.
MURMUR = {
    "k1": 2110152746,
    "k2": 1479966664,
    "key1": 462881061,
    "key2": 1936800180,
    "key01": 39696932,
    "key02": 751761803,
}
JAVA = {"keykeykeykeykey1": 434058482, "keykeykey2": 42978643}


def test_hashes_are_those_of_pulsars_clients() -> None:
    assert {key: murmur3_32(key) for key in MURMUR} == MURMUR
    assert {key: java_string(key) for key in JAVA} == JAVA
    assert murmur3_32("") == 0
    assert java_string("😀") == 1772899  # two code units of UTF-16
    assert partition_for_key("key1", 7, "murmur3_32") == 462881061 % 7
    assert partition_for_key(b"\xff\x00", 7, "murmur3_32") == murmur3_32("/wA=") % 7


@settings(deadline=None)
@given(
    st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from(sorted(HASHES)),
    st.booleans(),
)
def test_a_column_of_keys_goes_where_each_of_them_goes(
    texts: list[str | None], partitions: int, scheme: str, as_bytes: bool
) -> None:
    keys = [None if text is None else text.encode() if as_bytes else text for text in texts]
    column = pa.array(keys, pa.binary() if as_bytes else pa.string())
    wanted = [-1 if key is None else partition_for_key(key, partitions, scheme) for key in keys]
    assert partitions_for_keys(column, partitions, scheme).tolist() == wanted
    assert partitions_for_keys(column.slice(1), partitions, scheme).tolist() == wanted[1:]


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(Refused, match="hashing scheme 'boost' is unknown"):
        require_hashing_scheme("boost")
