"""Text to vectors without torch: static word vectors, or hashed character n-grams for any language."""

from __future__ import annotations

import hashlib
import unicodedata
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mia.errors import ConfigError
from mia.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mia.protocols import Encoder

    Matrix = NDArray[np.float32]
    Vector = NDArray[np.float64]
    Hashes = NDArray[np.uint64]

# By length of n-gram: one letter says little but one ideograph a lot; pairs and triples carry most in every script.
WEIGHTS = {1: 0.5, 2: 1.0, 3: 1.0, 4: 0.5}
MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)
LONGEST = 4096  # characters read of a text: more is no question, and would cost time and memory without bound


class WordLlamaEncoder:
    """The mean of the static token vectors of the `wordllama` package, 256 numbers, read offline from its files.

    The files are read directly: importing the package would reconfigure the root logger.
    """

    def __init__(self) -> None:
        try:
            load_file = import_module("safetensors.numpy").load_file
            read_tokenizer = import_module("tokenizers").Tokenizer.from_file
            spec = find_spec("wordllama")
            if spec is None or spec.origin is None:
                raise ModuleNotFoundError("wordllama")
            folder = Path(spec.origin).parent
            weights = folder / "weights" / "l2_supercat_256.safetensors"
            vocabulary = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
            digest = hashlib.sha256(weights.read_bytes() + vocabulary.read_bytes()).hexdigest()
        except (ImportError, OSError) as error:
            raise ConfigError(
                f"The encoder wordllama cannot be loaded: {error}.",
                remedy="Run `./install.sh embedded`, or set MIA_ENCODER=hashed.",
            ) from error
        self._table: Matrix = load_file(weights)["embedding.weight"].astype(np.float32)
        self._tokenizer = read_tokenizer(str(vocabulary))
        self.id = f"wordllama-l2_supercat-256-v1-{digest[:8]}"
        self.dimensions: int = self._table.shape[1]

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return float32 [n, dimensions], rows of unit length (zero for blank text)."""
        return _stack([self._vector(_prepared(text)) for text in texts], self.dimensions)

    def _vector(self, text: str) -> Vector:
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        vector: Vector = self._table[tokens].sum(axis=0, dtype=np.float64)
        return vector


class HashedEncoder:
    """Character n-grams hashed into signed dimensions: needs no model and works in any language."""

    id = "hashed-ngrams-512-v1"
    dimensions = 512

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return float32 [n, dimensions], rows of unit length (zero for blank text)."""
        return _stack([self._vector(_prepared(text)) for text in texts], self.dimensions)

    def _vector(self, text: str) -> Vector:
        vector = np.zeros(self.dimensions)
        if not text:
            return vector
        codes = np.frombuffer(f" {text} ".encode("utf-32-le"), dtype="<u4").astype(np.uint64)
        rolling = np.zeros(len(codes) + 1, dtype=np.uint64)
        for size, weight in WEIGHTS.items():
            if size > len(codes):
                break
            rolling = rolling[:-1] * MULTIPLIERS[0] + codes[size - 1 :] + np.uint64(1)
            grams, counts = np.unique(_mixed(rolling), return_counts=True)
            sign = np.where(grams >> np.uint64(63), 1.0, -1.0)
            places = (grams % np.uint64(self.dimensions)).astype(np.int64)
            vector += np.bincount(places, sign * weight * np.sqrt(counts), minlength=self.dimensions)
        return vector


def load_encoder(name: Literal["wordllama", "hashed"]) -> Encoder:
    """Load an encoder by the name of its setting (`MIA_ENCODER`).

    Raises:
        ConfigError: the package that it needs is not installed.
    """
    return WordLlamaEncoder() if name == "wordllama" else HashedEncoder()


def _prepared(text: str) -> str:
    """Fold width, case and space, and bound the length (again after folding: one ligature may become 18 letters)."""
    return " ".join(unicodedata.normalize("NFKC", clean(text[:LONGEST])).casefold().split())[:LONGEST]


def _stack(vectors: list[Vector], dimensions: int) -> Matrix:
    """Return the rows scaled to unit length, float32; zero rows stay zero."""
    matrix = np.array(vectors, dtype=np.float64).reshape(len(vectors), dimensions)
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    unit: Matrix = np.divide(matrix, lengths, out=np.zeros_like(matrix), where=lengths > 0).astype(np.float32)
    return unit


def _mixed(hashes: Hashes) -> Hashes:
    """Spread the bits of 64-bit hashes (the finaliser of SplitMix64), so that any of them can pick a place."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * MULTIPLIERS[1]
    hashes = (hashes ^ (hashes >> np.uint64(27))) * MULTIPLIERS[2]
    return hashes ^ (hashes >> np.uint64(31))
