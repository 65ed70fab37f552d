"""Environment with the built wheel instead of the checkout: what a user has after `pip install`.

    python = make_environment(Path("dist/pyspark_ledger-….whl"), directory)

The wheel is installed into a new environment in `directory`. A line in a `.pth` file adds the packages of the
environment that runs this module. That environment has the checkout as an editable install, by a `.pth` file of its
own. Python ignores `.pth` files in an added directory. So the new environment does not see the checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
# Variables that would change the packages, the workers or the store of a program.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LEDGER_STORE", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def build_wheel(directory: Path) -> Path:
    """Build the wheel of the checkout. Return its path."""
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT))
    subprocess.run([*PIP, *wheel], check=True)
    return next(directory.glob("pyspark_ledger-*.whl"))


def make_environment(wheel: Path, directory: Path) -> Path:
    """Install the wheel into a new environment. Return its interpreter."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    # The other packages are added after the wheel. If they were there before, pip would uninstall the editable install.
    subprocess.run([*PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    version = f"python{sysconfig.get_python_version()}"
    path = directory / "lib" / version / "site-packages" / "packages.pth"
    path.write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return python


def environment_variables(temporary: Path) -> dict[str, str]:
    """Return the variables of a program in such an environment, whose temporary files go to `temporary`."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {**inherited, "TMPDIR": str(temporary), "MPLBACKEND": "agg"}


def check_text(directory: Path) -> str:
    """Return the source of a check: the package comes from `directory`, and the checkout is not importable."""
    return (
        "import importlib.util, pathlib, pyspark_ledger\n"
        f"assert pathlib.Path(pyspark_ledger.__file__).is_relative_to({str(directory)!r}), pyspark_ledger.__file__\n"
        "assert importlib.util.find_spec('streaming_examples') is None\n"
    )
