import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("verl")

import pyarrow as pa
import pyarrow.parquet as pq
from dialogues import fast
from omegaconf import OmegaConf

from mia.errors import ConfigError, InputError
from mia.training.checks import check
from mia.training.config import Lengths, Stage
from mia.types import Recall


class Sound(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sound)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def house(tmp_path):
    fast("qwen3").save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({"max_position_embeddings": 8192, "model_type": "qwen3"})
    )
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    rows = [
        {"id": str(n), "question": "Capital of Aba?", "answers": ["Ola"], "recall": Recall().model_dump_json()}
        for n in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    return tmp_path


def checked(house, url, batch=4, **lengths):
    stage = Stage(
        stage="planner",
        run="r",
        executor_url=url,
        judge="exact",
        lengths=Lengths(**{"prompt": 2000, "reply": 64} | lengths),
    )
    data = {
        "train_files": str(house / "rows.parquet"),
        "val_files": str(house / "rows.parquet"),
        "train_batch_size": batch,
    }
    config = {"data": data, "actor_rollout_ref": {"model": {"path": str(house / "model")}}}
    check(OmegaConf.create(config), stage)


def test_what_is_all_there_passes(house, url):
    checked(house, url)


def test_a_folder_without_weights_a_window_too_short_and_a_service_that_is_down_are_all_named(house):
    (house / "model" / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as caught:
        checked(house, "http://127.0.0.1:9", prompt=9000)
    told = caught.value.message.splitlines()
    assert len(told) == 3
    assert "has no weights" in told[0]
    assert "reads 8192" in told[1]
    assert "PLAN_URL" in told[2]


def test_a_folder_that_is_no_model_is_named(house, url):
    (house / "model" / "config.json").unlink()
    with pytest.raises(ConfigError, match="it is no model"):
        checked(house, url)


def test_prompts_that_are_too_long_are_found_before_anything_is_loaded(house, url):
    with pytest.raises(InputError, match="8 of 8 prompts"):
        checked(house, url, prompt=64, memory=0)


def test_fewer_questions_than_a_step_takes_are_refused(house, url):
    with pytest.raises(ConfigError, match="4 questions"):
        checked(house, url, batch=8)
