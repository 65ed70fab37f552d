"""Options of the data source, declared once.

`table` lists the options of all modules and prints docs/options.md. `checks` compares options with each other.
"""
