"""Builds the wheel with maturin, and brings the binary and the library of `stdchk run` into it.

The idea: maturin takes files of a data folder into the wheel; these are built and put there before it begins.
"""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import build_sdist, get_requires_for_build_sdist  # noqa: F401  (hooks of PEP 517)

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "stdchk.data"


def _bring_binary():
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    subprocess.run([cargo, "build", "--release", "--package", "stdchk", "--package", "stdchk-preload"], cwd=ROOT, check=True)
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    shutil.rmtree(DATA, ignore_errors=True)
    for name, folder in [("stdchk", "scripts"), ("libstdchk_preload.so", "data/lib/stdchk")]:
        (DATA / folder).mkdir(parents=True)
        shutil.copy2(built / name, DATA / folder / name)
        subprocess.run(["strip", "--strip-unneeded", str(DATA / folder / name)], check=True)


def get_requires_for_build_wheel(config_settings=None):
    return maturin.get_requires_for_build_wheel(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    DATA.mkdir(exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _bring_binary()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _bring_binary()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


get_requires_for_build_editable = get_requires_for_build_wheel
