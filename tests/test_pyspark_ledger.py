"""Goal: importing the package never fails and costs little, and every name that users need is there. Method: fresh
interpreters, in directories of a user whose own files have the names of its folders.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pyspark_ledger
from pyspark_ledger.connector.session.default_store import use_store
from tests.rigs.bare_session import BareSession

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"pyspark", "pyarrow", "numpy", "pandas", "google.protobuf", "google_crc32c", "boto3", "deltalake", "msgspec"}
HEAVY |= {"rich", "sortedcontainers", "typer", "cryptography"}


def run(code: str, cwd: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    loaded = f"print({HEAVY} & set(sys.modules), sorted(m for m in sys.modules if m.startswith('pyspark_ledger.')))"
    assert run(f"import pyspark_ledger, sys; {loaded}", ROOT) == (
        "set() ['pyspark_ledger.ledger', 'pyspark_ledger.ledger.version']\n"
    )


def test_a_broker_loads_no_spark() -> None:
    code = "import sys, pyspark_ledger.offload.broker; print([m for m in sys.modules if m.startswith('pyspark.')])"
    assert run(code, ROOT) == "[]\n"


@pytest.mark.parametrize("name", pyspark_ledger.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pyspark_ledger, name) is not None
    assert name in dir(pyspark_ledger)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'pyspark_ledger' has no attribute 'no_such_name'"):
        _ = pyspark_ledger.no_such_name


def test_import_works_without_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import pyspark_ledger as p; print(p.DefaultSource.name())"
    assert run(code, ROOT) == "ledger\n"


@pytest.mark.parametrize(
    "spark", [{"sql/__init__.py": ""}, {"sql/__init__.py": "", "sql/datasource.py": "raise TypeError('broken')"}]
)
def test_import_works_with_a_spark_without_the_interface_or_a_broken_one(tmp_path: Path, spark: dict[str, str]) -> None:
    for name, text in {"__init__.py": "", **spark}.items():
        place = tmp_path / "pyspark" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    code = "import pyspark, pyspark_ledger as p; print(pyspark.__file__, p.DefaultSource.name())"
    assert run(code, tmp_path) == f"{tmp_path / 'pyspark' / '__init__.py'} ledger\n"


@pytest.mark.parametrize("name", ["connector", "ledger", "offload"])
@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_users_own_module_of_a_folders_name_is_in_nobodys_way(tmp_path: Path, name: str, form: str) -> None:
    own = tmp_path / form.format(name)
    own.parent.mkdir(exist_ok=True)
    own.write_text("raise RuntimeError('of the user, and never run')\n", encoding="utf-8")
    code = f"""
import sys; sys.path.append({str(ROOT)!r})
import pyspark_ledger
source = pyspark_ledger.DefaultSource({{"path": "orders"}})
print(source.name(), pyspark_ledger.connect.__name__, pyspark_ledger.LedgerStore.__name__)
"""
    assert run(code, tmp_path) == "ledger connect LedgerStore\n"


# Each costs as much as everything of ours: what a process does not use, it does not import.
@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("connector.data_source", {"pyarrow", "numpy", "google.protobuf", "ssl", "tomllib", "boto3"}),
        ("ledger.api.store", {"pyarrow.compute", "pyarrow.flight", "ssl", "tomllib", "boto3"}),
        ("connector.read.stream_reader", {"pyarrow.compute", "pyarrow.flight", "ssl", "boto3"}),
        ("connector.write.writers", {"pyarrow.compute", "pyarrow.flight", "ssl", "boto3"}),
        ("connector.read.batch_reader", {"pyarrow.compute", "pyarrow.flight", "ssl", "boto3"}),
        ("offload.broker", {"pyarrow.compute", "ssl", "tomllib", "boto3", "pyspark"}),
    ],
)
def test_a_process_imports_only_what_it_uses(modules: str, heavy: set[str]) -> None:
    bare = "import sys, pyspark.sql.datasource, pyspark.sql.streaming.datasource; before = set(sys.modules)"
    before = "import sys; before = set()" if "pyspark" in heavy else bare
    code = f"{before}; import pyspark_ledger.{modules}; print({heavy} & set(sys.modules) - before)"
    assert run(code, ROOT) == "set()\n"


def test_publish_takes_the_store_that_the_session_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = BareSession()
    monkeypatch.setattr("pyspark_ledger.connector.spark_features.register_source", lambda *_: None)
    monkeypatch.setenv("LEDGER_STORE", str(tmp_path / "first"))
    use_store(spark, None, options={"authParams": "env:TOKEN"})
    monkeypatch.setenv("LEDGER_STORE", str(tmp_path / "second"))
    first = str(tmp_path / "first")
    assert pyspark_ledger._located(spark, None) == {"store": first, "authParams": "env:TOKEN"}
    assert pyspark_ledger._located(spark, {"Store": "s3://lake/a"})["Store"] == "s3://lake/a"
    assert pyspark_ledger._located(BareSession(), None)["store"] == str(tmp_path / "second")  # type: ignore[arg-type]
