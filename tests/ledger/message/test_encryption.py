"""Goal: an encrypted entry is opened exactly or not at all. Method: keys and data keys made here, bytes changed.

That it is opened as Pulsar's client encrypted it, `tests/connector/read/bucket/test_scan.py` shows on real objects.
"""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message import encryption
from pyspark_ledger.ledger.message.encryption import PrivateKeys
from pyspark_ledger.ledger.message.entry import ParsedEntry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
SHA1 = hashes.SHA1()  # noqa: S303 — what Pulsar's clients pad with
OAEP = padding.OAEP(padding.MGF1(SHA1), SHA1, None)


def encrypted(payload: bytes, data_key: bytes = b"k" * 32) -> ParsedEntry:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, encryption_param=os.urandom(12))
    metadata.encryption_keys.add(key="a", value=KEY.public_key().encrypt(data_key, OAEP))
    body = AESGCM(data_key.ljust(16)).encrypt(metadata.encryption_param, payload, None)
    return ParsedEntry(None, metadata, memoryview(body))


def test_what_is_opened_is_the_entry_before_it_was_encrypted() -> None:
    keys = PrivateKeys({"a": PEM})
    for payload in (b"", b"some value"):
        clear = keys.opened(encrypted(payload), "it")
        assert bytes(clear.payload) == payload
        assert clear.metadata == MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
        assert keys.opened(clear, "it") is clear


def test_a_bit_that_changed_is_damage() -> None:
    keys, entry = PrivateKeys({"a": PEM}), encrypted(b"some value")
    for place in range(len(entry.payload)):
        body = bytearray(entry.payload)
        body[place] ^= 1
        with pytest.raises(Corrupt, match="it has 26 encrypted bytes that do not match their authentication tag"):
            keys.opened(entry._replace(payload=memoryview(body)), "it")
    with pytest.raises(Corrupt, match="nonce of 12 bytes and has 9 bytes"):
        keys.opened(entry._replace(payload=entry.payload[:9]), "it")
    with pytest.raises(Corrupt, match="data key of 5 bytes"):
        keys.opened(encrypted(b"", b"short"), "it")
    entry.metadata.encryption_keys[0].value = bytes(256)
    with pytest.raises(Refused, match="does not decrypt it"):
        keys.opened(entry, "it")


def test_data_keys_are_kept_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "_DATA_KEYS_MAX", 3)
    keys = PrivateKeys({"a": PEM})
    first = encrypted(b"first")
    for entry in [first, *(encrypted(b"more", os.urandom(16)) for _ in range(5)), first]:
        keys.opened(entry, "it")
        assert len(keys._data_keys) <= 3


def test_what_is_no_private_key_is_refused_by_the_name_it_was_given() -> None:
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    locked = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    for pem, said in (
        (b"", "not a private key in PEM"),
        (locked, "has a password"),
        (other, "is a .*Ed25519PrivateKey"),
    ):
        with pytest.raises(Refused, match=f"the private key for 'a' .*{said}"):
            PrivateKeys({"a": pem})
