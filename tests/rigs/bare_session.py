"""Stand-in for a Spark session, for calls that need no JVM."""

from __future__ import annotations


class _Settings(dict[str, str]):
    set = dict.__setitem__


class BareSession:
    """Session that only keeps settings. A test replaces `register_source`."""

    def __init__(self) -> None:
        self.conf = _Settings()
        self.session_id = "bare"  # of a session of Spark Connect
