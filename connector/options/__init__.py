"""Options of the data source, declared once.

`table` has every option, those of `bucket` and `history` included, and prints docs/options.md; `checks` compares
options with each other.
"""
