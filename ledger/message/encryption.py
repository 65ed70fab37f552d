"""Decryption of payloads that a Pulsar client encrypted end to end, with the reader's private keys.

The producer encrypts payloads with a random AES key, the *data key*. It encrypts the data key with one or more public
keys, and stores the results in the entry's metadata. An *entry* has one message, a batch of messages, or a *chunk*, a
part of a large message.

    encryption_keys    for each public key: its name, and the data key encrypted with it
    encryption_param   the nonce, 12 bytes that differ for each payload
    payload            AES-GCM of the compressed batch, message or chunk, then its checksum (tag) of 16 bytes

The next terms are names of standard methods in cryptography. Only a change of this module needs them.

    data key by RSA    OAEP with SHA-1
    data key by EC     point ‖ data key xor K1 ‖ HMAC-SHA1 with key K2: ECIES with Bouncy Castle's defaults, where
                       K2 (16 bytes) ‖ K1 is KDF2 with SHA-1 of the point and the shared secret of ECDH

Rules
- A producer uses a data key for hours, so decrypted data keys are cached, up to a fixed number.
- Decryption returns the entry that the producer had before encryption. An unencrypted entry is returned unchanged.
- No error contains a key or decrypted bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.message.entry import ParsedEntry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

_TAG_BYTES, _NONCE_BYTES = 16, 12
_MAC_KEY_BYTES, _MAC_BYTES, _SHA1_BYTES = 16, 20, 20
_AES_KEY_BYTES = (16, 24, 32)
_DATA_KEYS_MAX = 1024
ANY_NAME = "*"
_CLEARED = ("encryption_keys", "encryption_param", "encryption_algo")


class PrivateKeys:
    """Private keys of a reader, by name. The key named `ANY_NAME` is used for every name without a key."""

    def __init__(self, pems: Mapping[str, bytes]) -> None:
        self._keys = {name: _loaded(pem, f"the private key for {name!r}") for name, pem in pems.items()}
        self._data_keys: dict[bytes, Any] = {}

    def opened(self, entry: ParsedEntry, where: str) -> ParsedEntry:
        """Return the decrypted entry.

        Raises Unsupported if no private key has a name that the entry states. Raises Refused if the private keys do not
        match the public keys. Raises Corrupt if the entry's bytes were changed. Each error names `where`.
        """
        metadata = entry.metadata
        if not metadata.encryption_keys:
            return entry
        cipher = self._cipher(metadata, where)
        if len(metadata.encryption_param) != _NONCE_BYTES or len(entry.payload) < _TAG_BYTES:
            raise Corrupt(
                f"{where} is encrypted with a nonce of {len(metadata.encryption_param)} bytes and has "
                f"{len(entry.payload)} bytes, expected {_NONCE_BYTES} and at least {_TAG_BYTES}"
            )
        from cryptography.exceptions import InvalidTag

        try:
            payload = cipher.decrypt(metadata.encryption_param, entry.payload, None)
        except InvalidTag as wrong:
            raise Corrupt(
                f"{where} has {len(entry.payload)} encrypted bytes that do not match their authentication tag"
            ) from wrong
        clear = MessageMetadata()
        clear.CopyFrom(metadata)
        for field in _CLEARED:
            clear.ClearField(field)
        return ParsedEntry(entry.stamp, clear, memoryview(payload))

    def _cipher(self, metadata: MessageMetadata, where: str) -> Any:
        """Return the cipher of an entry, from the first of its keys that can be decrypted."""
        known = [(wrapped, key) for wrapped in metadata.encryption_keys if (key := self._key(wrapped.key)) is not None]
        names = ", ".join(repr(wrapped.key) for wrapped in metadata.encryption_keys)
        if not known:
            given = ", ".join(map(repr, self._keys))
            raise Unsupported(
                f"{where} is encrypted with key {names}, private keys were given for {given}",
                hint="Give the private key of one of these names",
            )
        for wrapped, key in known:
            cipher = self._data_keys.get(wrapped.value)
            if cipher is not None:
                return cipher
            data_key = _data_key(key, wrapped.value)
            if data_key is not None and len(data_key) not in _AES_KEY_BYTES:
                raise Corrupt(f"{where} has a data key of {len(data_key)} bytes, expected one of {_AES_KEY_BYTES}")
            if data_key is not None:
                return self._cached_cipher(wrapped.value, data_key)
        raise Refused(
            f"{where} is encrypted with key {names}, and the given private key does not decrypt it",
            hint="Give the private key that belongs to the public key of that name",
        )

    def _key(self, name: str) -> Any:
        return self._keys.get(name, self._keys.get(ANY_NAME))

    def _cached_cipher(self, encrypted: bytes, data_key: bytes) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        while len(self._data_keys) >= _DATA_KEYS_MAX:
            del self._data_keys[next(iter(self._data_keys))]
        return self._data_keys.setdefault(encrypted, AESGCM(data_key))


def _loaded(pem: bytes, what: str) -> Any:
    """Load an RSA or EC key. Errors do not contain its text."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ec, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as missing:
        raise Unsupported(
            "the package cryptography, which decrypts messages, is not installed here",
            hint="Run pip install 'pyspark-ledger[crypto]' on the driver and the executors",
        ) from missing
    begin = pem.find(b"-----BEGIN", pem.find(b"-----END EC PARAMETERS-----") + 1)
    try:
        key = load_pem_private_key(pem[max(begin, 0) :], password=None)
    except (ValueError, TypeError) as wrong:
        hint = "Give a PEM file without a password, as openssl writes it"
        raise Refused(f"{what} is not a private key in PEM, or has a password", hint=hint) from wrong
    if not isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey)):
        raise Refused(f"{what} is a {type(key).__name__}, Pulsar's clients encrypt with RSA and EC")
    return key


def _data_key(key: Any, encrypted: bytes) -> bytes | None:
    """Decrypt the data key. Returns None if another public key encrypted it."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    if not isinstance(key, rsa.RSAPrivateKey):
        return _by_ecies(key, encrypted)
    sha1 = hashes.SHA1()  # noqa: S303 — Pulsar's clients pad with SHA-1
    try:
        return key.decrypt(encrypted, padding.OAEP(padding.MGF1(sha1), sha1, None))
    except ValueError:
        return None


def _by_ecies(key: Any, encrypted: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, hmac
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

    size = 1 + 2 * ((key.curve.key_size + 7) // 8)
    length = len(encrypted) - size - _MAC_BYTES
    if length < 1:
        return None
    point, body, mac = encrypted[:size], encrypted[size:-_MAC_BYTES], encrypted[-_MAC_BYTES:]
    try:
        secret = key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(key.curve, point))
    except ValueError:
        return None
    sha1 = hashes.SHA1()  # noqa: S303 — as above
    derived = X963KDF(sha1, _MAC_KEY_BYTES + length, None).derive(point + secret)
    check = hmac.HMAC(derived[:_MAC_KEY_BYTES], sha1)
    check.update(body + bytes(8))  # eight zero bytes: the length of the empty label
    try:
        check.verify(mac)
    except InvalidSignature:
        return None
    return bytes(left ^ right for left, right in zip(body, derived[_MAC_KEY_BYTES:], strict=True))
