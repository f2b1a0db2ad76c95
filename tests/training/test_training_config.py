from pathlib import Path

import pytest

pytest.importorskip("verl")

from mia.errors import ConfigError
from mia.training.config import Lengths, composed, stage_of

ROOT = Path(__file__).parents[2]
STAGE = ROOT / "Planner-Train" / "config.yaml"


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    for name in ("PLAN_URL", "JUDGE_URL", "DATASET_TRAIN", "DATASET_VAL", "REF_MODEL_PATH", "SAVE_CHECKPOINT_DIR"):
        monkeypatch.setenv(name, "http://127.0.0.1:1" if "URL" in name else f"/data/{name}")


def test_the_stage_is_as_published_and_says_so_in_sixty_lines():
    config = composed(STAGE, [])
    assert len(STAGE.read_text().splitlines()) <= 60
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n, actor.optim.lr) == (128, 128, 8, 1e-6)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (24576, 8192)
    assert (config.trainer.n_gpus_per_node, config.trainer.total_epochs, rollout.temperature) == (4, 5, 1.0)
    assert not actor.use_kl_loss
    assert config.algorithm.adv_estimator == "grpo"


@pytest.mark.parametrize("overlay", sorted(path.stem for path in (ROOT / "configs" / "overlay").glob("*.yaml")))
def test_every_overlay_composes(overlay):
    config = composed(STAGE, [f"+overlay={overlay}"])
    assert config.trainer.n_gpus_per_node == 1
    assert stage_of(config).lengths.response == config.data.max_response_length


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainer.total_epoch=1", "total_epoch"),
        ("+trainer.total_epoch=1", "Did you mean trainer.total_epochs"),
        ("+mia.lengths.replies=3", "mia.lengths.replies"),
        ("mia.lengths.reply=many", "mia.lengths.reply"),
        ("mia.stage=executors", "mia.stage"),
        ("+overlay=no_such", "no_such"),
        ("actor_rollout_ref.model.path=${oc.env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"),
    ],
)
def test_a_wrong_key_or_value_is_named(override, told):
    with pytest.raises(ConfigError) as caught:
        composed(STAGE, [override])
    assert told in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no configuration"):
        composed(tmp_path / "config.yaml", [])


def test_a_response_has_room_for_all_that_is_said_after_the_prompt():
    assert Lengths(reply=100, trace=50).response == 3 * 100 + 50 + 512
