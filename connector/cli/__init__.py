"""The command `ledger`, one module a group of sub-commands.

`app` puts them together.
"""
