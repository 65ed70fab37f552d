"""Decoders of payloads that Pulsar's clients encoded by a schema; `decoder` is the entry point."""
