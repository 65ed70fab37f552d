"""Goal: the bar of a publisher counts the bytes that its pass publishes. Method: logs made by hand, a screen that keeps
each drawing.
"""

from __future__ import annotations

from itertools import count

from pyspark_ledger.connector.publish.progress import PassProgress
from pyspark_ledger.connector.publish.segments import PublishableSegment, SealedLog
from pyspark_ledger.ledger.display.progress_bar import SILENT, ProgressBar
from pyspark_ledger.ledger.position import Position


class Drawings(list[tuple[float | None, str]]):
    def draw(self, title: str, fraction: float | None, words: str) -> None:
        self.append((fraction, words.partition(", about")[0]))


def log(name: str, *ids: int) -> SealedLog:
    segments = tuple(PublishableSegment(ledger_id, 1, 1, 1024) for ledger_id in ids)
    return SealedLog(f"public/default/persistent/{name}", "i", Position(0, 0), segments, {})


def test_segments_that_are_in_the_table_already_do_not_count() -> None:
    drawn, seconds = Drawings(), count(0, 1000)
    first, second = log("a", 1, 2, 3, 4), log("b", 5, 6)
    progress = PassProgress(ProgressBar("publish", drawn, lambda: next(seconds)), [first, second])
    for of, up_to in ((first, 2), (first, 3), (first, 4), (second, -1), (second, 5), (second, 6)):
        progress.show(of, up_to)
    assert [fraction for fraction, _ in drawn] == [0, 0.25, 0.5, 0.5, 0.75, 1]
    assert drawn[0][1] == "0 B of 4.0 KiB, a"
    assert drawn[-1][1] == "4.0 KiB of 4.0 KiB, b"


def test_a_pass_without_a_new_segment_is_at_its_end() -> None:
    drawn = Drawings()
    PassProgress(ProgressBar("publish", drawn, lambda: 0), [])
    assert drawn == [(1.0, "no new segment")]
    PassProgress(SILENT, [log("a", 1)]).show(log("a", 1), 1)
