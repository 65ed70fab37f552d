"""Goal: importing the module never fails and costs little; wrong packages are named. Method: fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    heavy = "{'pyarrow', 'numpy', 'ledger', 'connector', 'google.protobuf', 'pandas'}"
    assert run(f"import pyspark_ledger, sys; print({heavy} & set(sys.modules))", ROOT) == "set()\n"


def test_import_works_without_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import pyspark_ledger as p; print(p.DefaultSource.name())"
    assert run(code, ROOT) == "ledger\n"


def test_a_users_own_ledger_py_is_named_with_the_package(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text("x = 1\n", encoding="utf-8")
    code = f"""
import sys; sys.path.append({str(ROOT)!r})
import pyspark_ledger
try:
    pyspark_ledger.DefaultSource({{"path": "orders"}})
except ImportError as wrong:
    print(wrong)
"""
    told = run(code, tmp_path)
    assert str(tmp_path / "ledger.py") in told
    assert str(ROOT / "ledger" / "__init__.py") in told
