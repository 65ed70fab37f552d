"""Names on the wire: a longer one is refused before any code scans or repeats the text.

The limit is above that of every name that a store accepts; `ledger.names` states those.
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
        raise Refused(unencodable(wrong, "a name or value of the request"), hint="Name it in valid Unicode") from None
