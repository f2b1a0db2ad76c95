"""Vectors of a transformer that reads sentences, by name or from a folder (the package sentence-transformers)."""

from __future__ import annotations

import hashlib
import re
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from mia.errors import ConfigError
from mia.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LONGEST = 65536  # characters read of a text: the model reads less, but a tokenizer would read it all first
E5 = re.compile(r"(?:^|[-_/])e5(?:[-_]|$)", re.IGNORECASE)


class TransformerEncoder:
    """A model of sentences: SimCSE, E5, MiniLM, BGE and whatever else sentence-transformers loads.

    A model without a pooling of its own (SimCSE) gets the mean over all positions of its last layer. E5 was trained
    with a prefix, which for a comparison of equals is `query: ` on both sides.
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        try:
            load = import_module("sentence_transformers").SentenceTransformer
            broken: type[Exception] = import_module("safetensors").SafetensorError
        except ImportError as error:
            raise ConfigError(
                f"The encoder {name} needs a package that cannot be imported: {error}.",
                remedy="Run `./install.sh search`, or set MIA_ENCODER to static or hashed.",
            ) from error
        folder = Path(name)
        label = folder.resolve().name if folder.is_dir() else name
        self._prompt = "query: " if E5.search(label) else None
        self._lock = Lock()  # tokenizers change their truncation and padding while they run
        try:
            self._model: Any = load(name, device=device).float().eval()
            self.dimensions: int = self._encode(["."]).shape[1]
            self.id = f"{label}-{self.dimensions}-v1-{_digest(self._model, folder)}"
        except (OSError, ValueError, RuntimeError, LookupError, ImportError, AssertionError, broken) as error:
            raise ConfigError(
                f"The encoder {name} cannot be loaded on {device}: {str(error).rstrip('.')}.",
                remedy="MIA_ENCODER is static, hashed, a folder, or a Hugging Face name (is it right, and in reach?); "
                "MIA_ENCODER_DEVICE is cpu, cuda, cuda:1 ...",
            ) from error

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [n, dimensions], rows of unit length (zero for blank text)."""
        texts = [clean(text[:LONGEST]) for text in texts]
        written = [place for place, text in enumerate(texts) if text.strip()]
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        if written:
            vectors[written] = self._encode([texts[place] for place in written])
        return vectors

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        with self._lock:
            vectors: NDArray[np.float32] = self._model.encode(
                texts, prompt=self._prompt, normalize_embeddings=True, show_progress_bar=False
            )
        return vectors


def _digest(model: Any, folder: Path) -> str:
    """Hash the weights and, of a folder, the files that say how they are used; not where it lies."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().data)
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".json", ".txt", ".model"}:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
