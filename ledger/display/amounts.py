"""Numbers, ages and sizes in words for people."""

from __future__ import annotations

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_KIB = 1024


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def age_words(milliseconds: int) -> str:
    """Return an age by its two largest units: `3 d 4 h`, `5 min 0 s`; below a minute `7.2 s`."""
    if milliseconds < _UNITS[-2][1]:
        return f"{milliseconds / 1000:.1f} s"
    large = next(number for number, (_, size) in enumerate(_UNITS) if milliseconds >= size)
    (first, size), (second, part) = _UNITS[large : large + 2]
    return f"{milliseconds // size} {first} {milliseconds % size // part} {second}"


def size_words(size: float) -> str:
    """Return a number of bytes with its unit: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < _KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} PiB"
