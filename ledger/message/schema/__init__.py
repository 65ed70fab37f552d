"""Decoders of payloads that Pulsar's clients encoded with a schema. `decoder` is the entry point."""
