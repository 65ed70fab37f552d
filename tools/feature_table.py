"""Table of features by release of Spark, from runs of `tests/stories` on each release.

    build/features/4.0.2.json
    {"spark": "4.0.2", "python": "3.11.7", "java": "17.0.9", "features": {"limits of a batch": true, …}}

If the variable LEDGER_FEATURES is set, a run of `tests/stories` writes such a file. The table is in the page between
two comments.

Use: python tools/feature_table.py build/features docs/clusters.md     (ends with 1 if the page changed)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

BEGIN, END = "<!-- features: written by make test-sparks -->", "<!-- end of features -->"


def table(runs: list[dict]) -> str:
    """Return the table: a row for each feature, a column for each run."""
    features = list(dict.fromkeys(name for run in runs for name in run["features"]))
    heads = [
        f"{run['spark']}, Python {'.'.join(run['python'].split('.')[:2])}, Java {run['java'].split('.')[0]}"
        for run in runs
    ]
    lines = [f"| feature | {' | '.join(heads)} |", "|---|" + "---|" * len(runs)]
    for name in features:
        cells = [{True: "yes", False: "**no**", None: "not run"}[run["features"].get(name)] for run in runs]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """Return the page with another table. Raises ValueError if the page has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        message = f"the page has no lines {BEGIN!r} and {END!r}"
        raise ValueError(message)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    folder, page = Path(sys.argv[1]), Path(sys.argv[2])
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    before = page.read_text(encoding="utf-8")
    after = with_table(before, table(runs))
    page.write_text(after, encoding="utf-8")
    print(f"{page}: the table {'is as before' if after == before else 'has changed, commit the page'}")
    return int(after != before)


if __name__ == "__main__":
    sys.exit(main())
