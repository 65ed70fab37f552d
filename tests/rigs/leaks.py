"""Search for secrets in files: the texts themselves, and as base64, hexadecimal, URL or JSON would write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote


def written_forms(secret: str) -> set[bytes]:
    """Return the forms of a secret. Base64 depends on the number of bytes before the secret, modulo three."""
    data = secret.encode()
    shifted = [base64.b64encode(b"\0" * before + data)[-(-before * 8 // 6) :] for before in range(3)]
    whole = {form.rstrip(b"=")[:-1] for form in shifted}  # the last character also has bits of the next byte
    return {data, data.hex().encode(), quote(secret, safe="").encode(), json.dumps(secret)[1:-1].encode(), *whole}


def found_in(place: Path, secrets: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the name of each secret that a file contains. `place` is the file, or a folder that is searched whole."""
    forms = {name: written_forms(secret) for name, secret in secrets.items()}
    for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if path.is_file():
            data = path.read_bytes()
            yield from ((name, path) for name, texts in forms.items() if any(text in data for text in texts))
