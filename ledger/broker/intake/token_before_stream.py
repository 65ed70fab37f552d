"""Check of the token before a stream: a stream without a valid token is refused before its first message is read."""

from __future__ import annotations

from pyarrow import flight

from pyspark_ledger.ledger.transport.errors import to_flight
from pyspark_ledger.ledger.transport.tokens import BearerToken, BearerTokenFactory, unauthenticated

_STREAMS = (flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE, flight.FlightMethod.HANDSHAKE)


class TokenBeforeStream(BearerTokenFactory):
    """Factory that refuses a stream without a valid token.

    gRPC reads the request of every other call before it calls this factory. So the call itself raises for those
    (`require_token`).
    """

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> BearerToken:
        check = super().start_call(info, headers)
        if info.method in _STREAMS and not check.right:
            raise to_flight(unauthenticated(check))
        return check
