"""The command `ledger`, one module for each group of sub-commands.

`app` puts them together.
"""
