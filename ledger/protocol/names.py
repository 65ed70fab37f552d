"""Type of the names in requests and replies of the protocol, with a maximum length.

The decoder refuses a longer text before any code scans the text or shows it in an error. A name that a store accepts is
always shorter (`ledger.names`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.hidden_characters import unencodable

NAME_CHARS_MAX = 4096
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]


def request_body(request: msgspec.Struct) -> bytes:
    """Return the bytes of a request. Raises Refused for text that UTF-8 cannot encode."""
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError as wrong:
        raise Refused(
            unencodable(wrong, "a name or value of the request"), hint="Use a text of valid Unicode characters"
        ) from None
