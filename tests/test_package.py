"""Goal: Spark finds the source in every form of the package, and every module has one name. Method: build the wheel,
the sdist and a zip. Use each in a fresh interpreter from a directory of its own, as Spark's lookup does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = """
import sys
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
for builder in (SdistBuilder, WheelBuilder):
    print(*builder(sys.argv[1]).build(directory=sys.argv[2]))
"""
# What pyspark.sql.worker.lookup_data_sources does.
LOOKUP = """
import importlib, json, pkgutil
found = {}
for info in pkgutil.iter_modules():
    if info.name.startswith("pyspark_"):
        module = importlib.import_module(info.name)
        if hasattr(module, "DefaultSource"):
            found[module.DefaultSource.name()] = module.__file__
from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.offload.broker import main
print(json.dumps(found))
"""
EVERY_MODULE = """
import importlib, pkgutil, sys, pyspark_ledger
for found in pkgutil.walk_packages(pyspark_ledger.__path__, "pyspark_ledger."):
    importlib.import_module(found.name)
ours = [name for name in sys.modules if name.startswith("pyspark_ledger.")]
print(len(ours), sorted(name for name in sys.modules if name.split(".")[0] in ("connector", "ledger", "offload")))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of sdist and wheel, the wheel made from the sdist as pip does it."""
    directory = tmp_path_factory.mktemp("dist")
    build(ROOT, directory)
    return directory


def build(source: Path, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(source), str(directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def files_of(archive: Path) -> set[str]:
    """The package's files in a wheel or sdist, without what stands before them."""
    if archive.suffix == ".whl":
        names = zipfile.ZipFile(archive).namelist()
    else:
        with tarfile.open(archive) as opened:
            names = [name.partition("/")[2] for name in opened.getnames()]
    return {name for name in names if name.startswith("pyspark_ledger/")}


def tree() -> set[str]:
    """The same of the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "connector", "ledger", "offload"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {f"pyspark_ledger/{name}" for name in (*listed.stdout.split(), "__init__.py", "aio.py", "py.typed")}


def looked_up(place: Path, cwd: Path) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", LOOKUP], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_wheel_and_sdist_have_each_file_once_and_only_the_package(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert files_of(wheel) == files_of(sdist) == tree()
    beside = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()} - {"pyspark_ledger"}
    assert [name for name in beside if not name.endswith(".dist-info")] == ["pytest_pyspark_ledger.py"]
    with tarfile.open(sdist) as opened:
        assert "pytest_pyspark_ledger.py" in {name.partition("/")[2] for name in opened.getnames()}


def test_spark_finds_the_source_in_a_checkout(tmp_path: Path) -> None:
    assert looked_up(ROOT, tmp_path)["ledger"] == str(ROOT / "pyspark_ledger" / "__init__.py")


@pytest.mark.thorough
def test_spark_finds_the_source_in_an_installed_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")  # noqa: S202  # made here
    assert looked_up(tmp_path / "site", tmp_path)["ledger"].startswith(str(tmp_path / "site"))


@pytest.mark.thorough
def test_spark_finds_the_source_in_a_zip(built: Path, tmp_path: Path) -> None:
    """As `spark.submit.pyFiles` ships it: the wheel is one."""
    (wheel,) = built.glob("*.whl")
    archive = wheel.rename(tmp_path / "shipped.zip")
    try:
        assert looked_up(archive, tmp_path)["ledger"].startswith(str(archive))
    finally:
        archive.rename(wheel)


@pytest.mark.thorough
def test_spark_finds_the_source_in_a_wheel_that_is_made_of_the_sdist(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    build(source, tmp_path / "again")
    (wheel,) = (tmp_path / "again").glob("*.whl")
    assert files_of(wheel) == tree()
    assert looked_up(wheel, tmp_path)["ledger"].startswith(str(wheel))


@pytest.mark.thorough
def test_no_module_has_two_names() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_MODULE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, others = done.stdout.split(" ", 1)
    assert int(count) > 200
    assert others == "[]\n"


def test_no_module_imports_itself_through_others() -> None:
    """Hints for type checkers count: who reads one module of a circle has to read all."""
    graph = grimp.build_graph("pyspark_ledger", cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


PLANTED = {
    "an import that goes up": ("ledger/position.py", "from pyspark_ledger.ledger.store.store import Store"),
    "ledger imports the connector": ("ledger/clock.py", "from pyspark_ledger.connector.schema import __doc__"),
    "something inside imports the face": ("connector/schema.py", "from pyspark_ledger import connect"),
    "a client imports the server": (
        "ledger/client/producer.py",
        "from pyspark_ledger.ledger.log.writer import LogWriter",
    ),
    "Spark below the connector": ("ledger/errors.py", "import pyspark"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "line"), PLANTED.values(), ids=PLANTED)
def test_an_import_in_the_wrong_direction_is_refused(tmp_path: Path, path: str, line: str) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    broken = clone / path
    text = broken.read_text(encoding="utf-8").replace(
        "from __future__ import annotations\n", f"from __future__ import annotations\n\n{line}\n", 1
    )
    broken.write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(
        command, cwd=clone, env={**os.environ, "PYTHONPATH": str(clone)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
