"""What the small model server refuses before it starts."""

import socket
import sys

import pytest

from mia.embedded.server import serve_model
from mia.errors import ConfigError, InputError
from mia.runtime.settings import ModelServiceSettings, load


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
