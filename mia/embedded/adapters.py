"""Adapters of the small model: which role has which, and their weights as llama.cpp takes them."""

from __future__ import annotations

import argparse
import glob
import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from mia.embedded.model import DEFAULT
from mia.embedded.probes import BOUND, PROBES, check
from mia.errors import ConfigError, InputError, MiaError, StorageError
from mia.runtime.settings import ModelServiceSettings, load

ROLES = ("executor", "planner", "judge", "manager")
OWN = {role: Path("data/adapters/worldfacts") for role in ("executor", "planner")}  # those of the default model
FORMS = f"Set MIA_ADAPTERS to `auto`, to `none`, or to role=folder[,role=folder], with roles of {', '.join(ROLES)}."

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.([\w.]+)\.lora_([AB])\.weight")
# What would make the change of a matrix something else than alpha / rank * B @ A.
_UNSUPPORTED = (
    *("use_rslora", "use_dora", "use_qalora", "use_bdlora", "fan_in_fan_out", "rank_pattern", "alpha_pattern"),
    *("alora_invocation_tokens", "layers_to_transform", "layer_replication"),
)
_RECIPE = b"1"  # another one whenever the same base and adapter become another file
_SAMPLE = 1 << 20

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Adapter:
    """Low-rank changes of a model's linear layers, as PEFT stores them.

    `pairs` has A of shape (rank, inputs) and B of shape (outputs, rank) by layer and module, such as
    (0, "self_attn.q_proj"): they change the layer's matrix by `scale` * B @ A. `targets` are the modules' last names.
    """

    folder: Path
    rank: int
    alpha: float
    targets: tuple[str, ...]
    pairs: dict[tuple[int, str], Pair]
    sha256: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def scale(self) -> float:
        """The factor of B @ A."""
        return self.alpha / self.rank

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read an adapter and check that it is whole.

        Raises:
            InputError: a file is missing or broken, or the adapter is of a kind that is not supported.
        """
        config = _json(folder / _CONFIG)
        remedy = "Train a plain LoRA: scripts/warm_start.py does."
        strange = [name for name in _UNSUPPORTED if config.get(name)]
        if config.get("peft_type") != "LORA" or strange:
            kind = ", ".join(strange) or config.get("peft_type")
            raise InputError(f"The adapter {folder} is of a kind that is not supported: {kind}.", remedy=remedy)
        match config:
            case {"r": int(rank), "lora_alpha": int() | float() as alpha, "target_modules": list(targets)} if rank > 0:
                pass
            case _:
                text = f"{folder / _CONFIG} lacks a rank r, a number lora_alpha or a list target_modules."
                raise InputError(text, remedy=remedy)
        matrices: dict[tuple[int, str], dict[str, np.ndarray]] = {}
        for name, matrix in _tensors(folder / _WEIGHTS).items():
            named = _TENSOR.fullmatch(name)
            if not named:
                raise InputError(f"{folder / _WEIGHTS} has {name}, which is no part of a LoRA.", remedy=remedy)
            matrices.setdefault((int(named[1]), named[2]), {})[named[3]] = matrix
        pairs = {}
        for (layer, module), found in matrices.items():
            where = f"{module} of layer {layer} in {folder / _WEIGHTS}"
            if found.keys() != {"A", "B"}:
                raise InputError(f"Of {where}, only lora_{min(found)} is there.", remedy="Copy the adapter again.")
            a, b = found["A"], found["B"]
            if a.ndim != 2 or b.ndim != 2 or not a.shape[0] == b.shape[1] == rank:
                raise InputError(f"{where} has shapes {a.shape} and {b.shape}, not of rank {rank}.", remedy=remedy)
            if not (np.isfinite(a).all() and np.isfinite(b).all()):
                raise InputError(f"{where} has numbers that are not finite.", remedy="Train it again.")
            pairs[layer, module] = (a, b)
        return cls(folder, rank, float(alpha), tuple(targets), pairs, _digest(folder).hexdigest())


def roles(setting: str, model: str) -> dict[str, Path]:
    """Return the folder of the adapter of each role that has one.

    Args:
        setting: MIA_ADAPTERS: `auto`, `none`, or `role=folder[,role=folder]`.
        model: MIA_MODEL, which decides what `auto` means.

    Raises:
        ConfigError: the setting is of none of these forms, or names an unknown role or no adapter.
    """
    if setting == "none":
        return {}
    if setting == "auto":
        # A folder may hold no more than the checkpoint of a training that has not ended.
        return {role: folder for role, folder in OWN.items() if model == DEFAULT and (folder / _CONFIG).is_file()}
    found: dict[str, Path] = {}
    for part in setting.split(","):
        role, _, folder = (text.strip() for text in part.partition("="))
        if role not in ROLES or not folder:
            raise ConfigError(f"MIA_ADAPTERS has {part.strip()!r}, which gives no role an adapter.", remedy=FORMS)
        if role in found:
            raise ConfigError(f"MIA_ADAPTERS gives {role} two adapters.", remedy="Leave one. " + FORMS)
        if not (Path(folder) / _CONFIG).is_file():
            raise ConfigError(f"MIA_ADAPTERS names {folder}, where no {_CONFIG} is.", remedy="Correct it. " + FORMS)
        found[role] = Path(folder)
    return found


def merge(base: Path, adapter: Path, folder: Path) -> Path:
    """Return a GGUF of the base with the adapter merged into it, made in `folder` unless it is there already.

    It is named by the contents of both, so a changed adapter is merged anew; what it replaces is removed.

    Raises:
        ConfigError: the packages of the role embedded are missing.
        InputError: the base or the adapter cannot be read, or they do not fit.
        StorageError: `folder` cannot be written.
    """
    # The place keeps apart adapters whose folders have the same name, as those of two training runs may.
    place = hashlib.sha256(os.fsencode(adapter.resolve())).hexdigest()[:6]
    stem = f"{base.stem}+{adapter.resolve().name}-{place}"
    target = folder / f"{stem}-{_identity(base, adapter)}.gguf"
    if not target.exists():
        _write("write_merged", base, adapter, target)
        for older in folder.glob(f"{glob.escape(stem)}-{'?' * 12}.gguf"):
            if older != target:
                older.unlink(missing_ok=True)
    return target


def lora(base: Path, adapter: Path, out: Path) -> Path:
    """Write the adapter as a GGUF LoRA, which llama.cpp adds to the base while it runs, and return `out`.

    Raises:
        ConfigError, InputError, StorageError: as for `merge`.
    """
    _write("write_lora", base, adapter, out)
    return out


def _write(form: str, base: Path, adapter: Path, target: Path) -> None:
    """Write `target` through a function of `mia.embedded.gguf`, whole or not at all."""
    writer = getattr(_needed("mia.embedded.gguf"), form)
    whole = Adapter.read(adapter)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=target.parent) as scratch:
            writer(base, whole, Path(scratch) / target.name)
            (Path(scratch) / target.name).replace(target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error}.", remedy="Free space there.") from error


def _identity(base: Path, adapter: Path) -> str:
    """Return 12 characters that stand for the contents of both.

    Of the base, which may be gigabytes, its size and samples of its start, middle and end.
    """
    found = _digest(adapter)
    found.update(_RECIPE)
    try:
        with base.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            found.update(str(size).encode())
            for start in (0, size // 2, max(size - _SAMPLE, 0)):
                file.seek(start)
                found.update(file.read(_SAMPLE))
    except OSError as error:
        raise InputError(f"The base {base} cannot be read: {error.strerror}.", remedy="Check the path.") from error
    return found.hexdigest()[:12]


def _digest(folder: Path) -> hashlib._Hash:
    return hashlib.sha256(_bytes(folder / _CONFIG) + _bytes(folder / _WEIGHTS))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_bytes(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.", remedy="Copy the adapter again.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no JSON object.", remedy="Copy the adapter again.")
    return found


def _tensors(path: Path) -> dict[str, np.ndarray]:
    library = _needed("safetensors")
    try:
        tensors: dict[str, np.ndarray] = _needed("safetensors.numpy").load(_bytes(path))
    except (library.SafetensorError, KeyError, TypeError) as error:  # the last two: a type that numpy lacks
        remedy = "Store its tensors in fp16 or fp32; copy it again if it is damaged."
        raise InputError(f"{path} cannot be read: {error}.", remedy=remedy) from error
    return tensors


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        remedy = f"An adapter is a folder with {_CONFIG}, {_WEIGHTS} and {PROBES}."
        raise InputError(f"{path} cannot be read: {error.strerror}.", remedy=remedy) from error


def _needed(module: str) -> Any:
    """Return a module that only an optional extra brings."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"A package is missing: {error}.", remedy="Run ./install.sh embedded.") from error


def main() -> None:
    """Merge an adapter into its base where the model server looks for it, and check the result if asked to."""
    parser = argparse.ArgumentParser(prog="python -m mia.embedded.adapters", description=main.__doc__)
    parser.add_argument("base", type=Path, help="the GGUF file of the base model")
    parser.add_argument("adapter", type=Path, help="the folder of the adapter")
    parser.add_argument("--check", action="store_true", help="compare it with what the trainer computed")
    given = parser.parse_args()
    try:
        merged = merge(given.base, given.adapter, load(ModelServiceSettings).folder)
        said = f"{merged}"
        if given.check:
            far = check(merged, given.adapter)
            said += f": at most {far:.3f} nats from the trainer's probabilities (bound {BOUND})"
            if far > BOUND:
                raise InputError(f"{said}.", remedy="Train the adapter on this base, or set MIA_ADAPTERS=none.")
        sys.stdout.write(f"{said}\n")
    except MiaError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
