"""What the small model server refuses before it starts."""

import socket
import sys

import pytest

from mia.embedded import server
from mia.embedded.server import serve_model, weights_by_name
from mia.errors import ConfigError, InputError
from mia.runtime.settings import ModelServiceSettings, load

MERGED = {"executor": "small+worldfacts", "planner": "small+worldfacts", "judge": "small+other"}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Settings for weights whose adapters need no merging."""
    for role in ("worldfacts", "other"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "adapter_config.json").write_text("{}")
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(server, "merge", lambda base, adapter, folder: folder / f"{base.stem}+{adapter.name}")

    def settings(adapters):
        return load(ModelServiceSettings, model=str(tmp_path / "small.gguf"), folder=tmp_path, adapters=adapters)

    return settings


def test_every_role_has_its_weights_and_the_model_as_it_comes_has_its_own_name(tmp_path, small):
    adapters = f"executor={tmp_path}/worldfacts,planner={tmp_path}/worldfacts,judge={tmp_path}/other"
    names = {name: path.name for name, path in weights_by_name(small(adapters)).items()}
    assert names == {**MERGED, "manager": "small.gguf", "small": "small.gguf"}


def test_without_adapters_one_file_serves_all_names(tmp_path, small):
    for adapters in ("none", "auto"):
        found = weights_by_name(small(adapters))
        assert list(found) == ["executor", "planner", "judge", "manager", "small"]
        assert set(found.values()) == {tmp_path / "small.gguf"}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # the server sets it; this puts it back


@pytest.mark.parametrize("name", ["missing.gguf", "junk.gguf"])
def test_weights_that_are_none_are_an_input_error(tmp_path, name):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    (tmp_path / "junk.gguf").write_bytes(b"junk")
    with pytest.raises(InputError):
        serve_model(load(ModelServiceSettings, model=str(tmp_path / name), port=0))


def test_a_port_in_use_is_a_configuration_error_that_names_it(tmp_path):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            serve_model(load(ModelServiceSettings, model=str(tmp_path / "x.gguf"), port=port))
    assert "MODEL_PORT" in caught.value.remedy


def test_a_missing_library_names_the_role_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigError) as caught:
        serve_model(load(ModelServiceSettings, model=str(tmp_path / "x.gguf"), port=0))
    assert "./install.sh embedded" in caught.value.remedy
