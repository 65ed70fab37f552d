"""Batch of a producer while the producer adds messages. Not thread-safe: callers hold the producer's lock.

Most messages are *ordinary*: they have only a value, the next sequence id, and possibly a short key of text. The batch
keeps their values and keys in two lists, which the encoder uses without conversion. The first message with other fields
turns the batch into a list of messages.
"""

from __future__ import annotations

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.message.batch_encoder import encode_messages, encode_ordinary
from pyspark_ledger.ledger.message.outgoing.message import OutgoingMessage, ProducerMetadata, require_message
from pyspark_ledger.ledger.message.outgoing.sent_batch import MessageFuture, SentBatch


class OpenBatch:
    """Messages of a batch, and the result of sending them. The producer itself adds ordinary messages to both lists."""

    __slots__ = ("bytes", "first_sequence_id", "keys", "messages", "most", "result", "values")

    def __init__(self, partition: int) -> None:
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.messages: list[OutgoingMessage] | None = None  # all messages; None while the two lists are used
        self.first_sequence_id = -1
        self.bytes = 0  # the bytes of all values
        self.most = 0  # an upper bound of the bytes of `messages` in an entry
        self.result = SentBatch(partition)

    def __len__(self) -> int:
        return len(self.values if self.messages is None else self.messages)

    def as_messages(self) -> list[OutgoingMessage]:
        """Turn the batch into a list of messages, and return the list."""
        if self.messages is None:
            columns = enumerate(zip(self.values, self.keys, strict=True), self.first_sequence_id)
            self.messages = [OutgoingMessage(value, number, key) for number, (value, key) in columns]
            self.most = sum(map(require_message, self.messages))
        return self.messages

    def add(self, message: OutgoingMessage, most: int) -> MessageFuture:
        """Add a message of any kind. `most` is an upper bound of the message's bytes in an entry."""
        messages = self.as_messages()
        future = MessageFuture(self.result, len(messages))
        if not messages:
            self.first_sequence_id = message.sequence_id
        messages.append(message)
        self.bytes += message.size
        self.most += most
        return future

    def encode(self, envelope: ProducerMetadata, publish_time_ms: int) -> list[Buffer]:
        """Return the entry of all messages."""
        if self.messages is None:
            return encode_ordinary(envelope, self.values, self.keys, self.first_sequence_id, publish_time_ms)
        return encode_messages(envelope, self.messages, publish_time_ms)
