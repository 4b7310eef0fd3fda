"""What is installed is what is in the checkout, under the right names."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHIPPED = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "tracekit",
    "adapters",
    "exporters",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the sdist, as an index would serve it."""
    checkout = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, checkout / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."]
    done = subprocess.run(build, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (checkout / "dist").glob("*.whl")
    return path


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    in_checkout = {
        path.relative_to(ROOT).as_posix()
        for folder in ("tracekit", "tracekit/adapters", "tracekit/exporters")
        for pattern in ("*.py", "*.sql", "*.json", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert in_checkout - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_wheel_installs_one_name(wheel: Path) -> None:
    """A plain ``adapters`` would overwrite a package that many people use."""
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tracekit"}


def test_wheel_says_who_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name.split("/")[-1]: name for name in archive.namelist() if ".dist-info/" in name}
        about = message_from_bytes(archive.read(files["METADATA"]))
        commands = archive.read(files["entry_points.txt"]).decode()
    assert about["Name"] == "tracekit-blackbox"
    assert about["License-Expression"] == "MIT"
    assert "tracekit = tracekit.cli:main" in commands


def test_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import tracekit, tracekit.adapters, tracekit.exporters as e; print(e.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "site/tracekit/exporters/__init__.py")
