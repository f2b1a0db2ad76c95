"""What a run needs, looked at before anything is loaded: one line for each thing that is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mia.errors import ConfigError, UpstreamError
from mia.runtime.http import Service
from mia.training.dataset import Questions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omegaconf import DictConfig

    from mia.training.config import Stage

_SECONDS = 10.0
_LONGEST = ("max_position_embeddings", "max_sequence_length", "n_positions")


def check(config: DictConfig, stage: Stage) -> None:
    """Look at files, lengths and services.

    Raises:
        ConfigError: with every fault found, one a line.
        InputError: a data file cannot be used.
    """
    faults = [*_model(Path(config.actor_rollout_ref.model.path), stage), *asyncio.run(_services(stage))]
    if faults:
        raise ConfigError("\n".join(faults), remedy="Mend that, then start again.")
    train, _ = Questions(config.data.train_files), Questions(config.data.val_files)
    if len(train) < config.data.train_batch_size:
        raise ConfigError(
            f"{config.data.train_files} has {len(train)} questions, and a step takes {config.data.train_batch_size}.",
            remedy="Lower data.train_batch_size.",
        )


def _model(folder: Path, stage: Stage) -> Iterator[str]:
    """Tell what a local folder lacks; a name of the hub is left to the hub."""
    if not folder.exists() and len(folder.parts) == 2 and not folder.is_absolute():
        return
    if not (folder / "config.json").is_file():
        yield f"{folder} has no config.json, so it is no model. Set REF_MODEL_PATH; scripts/fetch_model.sh fetches one."
        return
    if not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        yield f"{folder} has no weights (*.safetensors). Fetch it again with scripts/fetch_model.sh."
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    longest = next((settings[name] for name in _LONGEST if settings.get(name)), 0)
    needed = stage.lengths.prompt + stage.lengths.response
    if longest and needed > longest:
        yield f"mia.lengths add up to {needed} tokens and {folder.name} reads {longest}. Lower mia.lengths."


async def _services(stage: Stage) -> list[str]:
    asked = [
        ("The Executor's service", stage.executor_url, "/healthz", "Start Serve/agent.sh train, or correct PLAN_URL.")
    ]
    if stage.judge == "truth":
        asked.append(("The Judge's model", stage.judge_url, "/models", "Start a model, or correct JUDGE_URL."))
    faults = []
    for name, url, path, remedy in asked:
        service = Service(name, url, attempts=1)
        try:
            await service.get(path, deadline=_SECONDS)
        except UpstreamError:
            faults.append(f"{name} does not answer at {url or 'an empty URL'}. {remedy}")
        finally:
            await service.aclose()
    return faults
