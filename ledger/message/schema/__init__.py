"""Payloads that Pulsar's clients encoded by a schema, decoded into columns; `decoder` is the way in."""
