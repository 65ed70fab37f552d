"""Names as they may stand on the wire: a longer one is refused before anything scans or repeats the text.

The limit is above that of every name that a store takes; `ledger.names` states those.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.hidden_characters import unencodable

NAME_CHARS_MAX = 4096
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]


def request_body(request: msgspec.Struct) -> bytes:
    """Return a request as it is sent; raises Refused for text that no UTF-8 can state."""
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError as wrong:
        raise Refused(unencodable(wrong, "a name or value of the request"), hint="Name it in valid Unicode") from None
