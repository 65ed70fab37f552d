"""Batch of a producer while it gathers messages. Not thread-safe: the producer's lock guards it.

Most messages are *ordinary*: a value, perhaps a short key of text, and the next sequence id. Their values and keys are
kept in two lists, which the encoder takes as they are. The first message with more makes the batch a list of messages.
"""

from __future__ import annotations

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.message.batch_encoder import encode_messages, encode_ordinary
from pyspark_ledger.ledger.message.outgoing.message import OutgoingMessage, ProducerMetadata, require_message
from pyspark_ledger.ledger.message.outgoing.sent_batch import MessageFuture, SentBatch


class OpenBatch:
    """Messages that gather, and their result. The producer itself adds ordinary messages to the two lists."""

    __slots__ = ("bytes", "first_sequence_id", "keys", "messages", "most", "result", "values")

    def __init__(self, partition: int) -> None:
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.messages: list[OutgoingMessage] | None = None  # all of them, instead of the two lists
        self.first_sequence_id = -1
        self.bytes = 0  # of the values
        self.most = 0  # upper bound of the bytes of `messages` in an entry
        self.result = SentBatch(partition)

    def __len__(self) -> int:
        return len(self.values if self.messages is None else self.messages)

    def as_messages(self) -> list[OutgoingMessage]:
        """Make the batch a list of messages, and return the list."""
        if self.messages is None:
            columns = enumerate(zip(self.values, self.keys, strict=True), self.first_sequence_id)
            self.messages = [OutgoingMessage(value, number, key) for number, (value, key) in columns]
            self.most = sum(map(require_message, self.messages))
        return self.messages

    def add(self, message: OutgoingMessage, most: int) -> MessageFuture:
        """Add a message of any kind. `most`: upper bound of its bytes in an entry."""
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
