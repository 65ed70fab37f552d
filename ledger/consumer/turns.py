"""Logs of one loop: they take turns, partitions that are added join, and one wait covers all of them.

Rules
- After a batch of one log, it is the last whose turn comes.
- A partition that is added joins, and its turn is next. A partitioned ledger without partitions was deleted: NotFound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark_ledger.ledger.client.end_watch import WaitingReader
from pyspark_ledger.ledger.consumer.opened_rows import require_positions
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.names import canonical_name, partition_names, short_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.ends import KnownEnd, MovedEnd, WaitEnds

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

L = TypeVar("L")
_SHOWN = 5  # names in an error


class LogTurns(Generic[L]):
    """Logs of a loop by their full names. An `L` is what the loop keeps of one log."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._logs: dict[str, L] = {}
        self._order: list[str] = []  # the log whose turn is next is the first
        self._partitions: dict[str, int] = {}  # of each partitioned ledger, the number that has joined
        self._reader = WaitingReader()

    def __getitem__(self, name: str) -> L:
        return self._logs[name]

    def __contains__(self, name: str) -> bool:
        return name in self._logs or name in self._partitions

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[L]:
        """Yield the logs, the one whose turn is next first."""
        return iter([self._logs[name] for name in self._order])

    def add(self, name: str, log: L) -> None:
        """Add a log, whose turn is next."""
        self._logs[name] = log
        self._order.insert(0, name)

    def join(self, name: str, partitions: int, begin: Callable[[str], L]) -> None:
        """Add those partitions of a ledger that are not there yet. Raises NotFound if there is no partition."""
        for partition in existing_partitions(name, partitions):
            if partition not in self._logs:
                self.add(partition, begin(partition))
        self._partitions[name] = partitions

    def pass_turn(self, name: str) -> None:
        """Let the turn of a log come last."""
        self._order.sort(key=name.__eq__)  # keeps the order of the others

    def wait(self, known: list[KnownEnd], milliseconds: int) -> list[MovedEnd]:
        """Return the logs and partitioned ledgers that have moved. Wait for the first one. 0: look once."""
        known = known + [KnownEnd(name, "", EARLIEST, count) for name, count in self._partitions.items()]
        if milliseconds:
            return self._client.watch.wait(self._reader, known, milliseconds)
        return self._client.ask(WaitEnds("", 0, 0, known)).moved

    def wake(self) -> None:
        """End a `wait` that runs, or else the next one. Takes no lock."""
        self._reader.wake()

    def is_partitioned(self, name: str) -> bool:
        return name in self._partitions


def existing_partitions(name: str, partitions: int) -> list[str]:
    """Return the names of the partitions of a ledger. Raises NotFound if it has none."""
    if not partitions:
        raise NotFound(
            f"there is no partitioned ledger {short_name(name)!r}",
            hint="The ledger was deleted: create it again with `create_partitioned`",
        )
    return partition_names(name, partitions)


def named_positions(
    argument: str, given: Position | Mapping[str, Position], names: list[str], whole: str
) -> dict[str, Position]:
    """Return positions by full name. EARLIEST and LATEST mean all `names`, the ledgers or partitions of `whole`.

    Raises Refused for another position without a name, for a name that is not in `names`, and for what is no position.
    """
    if not isinstance(given, Mapping):
        if given not in (EARLIEST, LATEST):
            raise Refused(
                f"{argument} is {given!r}, but each of the {len(names)} logs of {whole} has its own positions",
                hint="Pass EARLIEST, LATEST, or a dictionary with a position for each name, such as `batch.ledger`",
            )
        return dict.fromkeys(names, given)
    positions = {canonical_name(name): position for name, position in given.items()}
    unknown = sorted(positions.keys() - set(names))
    if unknown:
        raise Refused(
            f"{argument} names {', '.join(map(short_name, unknown))}, "
            f"expected names out of {', '.join(map(short_name, names[:_SHOWN]))}{', …' * (len(names) > _SHOWN)}",
            hint="Use `batch.ledger` as the name of a partition or of a ledger",
        )
    require_positions(**{f"{argument}[{short_name(name)!r}]": position for name, position in positions.items()})
    return positions
