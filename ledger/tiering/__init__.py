"""Interface of the offloader, and the choice of the segments that are offloaded.

The *offloader* copies sealed segments, the complete files of ledgers, to object storage. The format is Pulsar's
(PIP-17). The package `offload` implements the interface. The program of the broker passes it. In the code,
`ledger_id` is the id of a segment, as in Pulsar.
"""
