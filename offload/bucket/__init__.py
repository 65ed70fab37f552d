"""Offloaded topics of a bucket, read without a broker.

Objects that Pulsar or this project wrote are listed, planned and fetched.
"""
