"""Index objects of offloaded segments, in Pulsar's format (PIP-17, a Pulsar Improvement Proposal).

The modules encode and decode bytes, and send no requests. BookKeeper, which some formats name, is the storage of
Pulsar's segments.
"""
