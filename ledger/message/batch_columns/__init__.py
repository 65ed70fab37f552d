"""Messages of many batches as Arrow columns, without a Python object for each message.

`columns` decodes a group of batches: as a matrix (`even_batches`), or with the offsets that `scanner` finds.
"""
