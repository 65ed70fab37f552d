"""Protobuf messages in Apache Pulsar's field numbers; generated, see the `.proto` files."""
