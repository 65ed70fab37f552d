"""The command `ledger`, with one module for each group of sub-commands. `app` adds all of them to the command."""
