"""Text to vectors: static token vectors that any language can share, hashed n-grams, or a model of one's own."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mia.errors import ConfigError
from mia.runtime.transformer import TransformerEncoder
from mia.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mia.protocols import Encoder

    Matrix = NDArray[np.float32]
    Vector = NDArray[np.float64]
    Hashes = NDArray[np.uint64]

LONGEST = 4096  # characters read of a text: more is no question, and would cost time and memory without bound

# Lengths that vectors of signs get beside token vectors, of which a usual one is 13 long: a letter that the table
# lacks is rare and says much; three letters say something where words are spelled out.
LETTER = 20.0
TRIPLE = 8.0
# Share of what only holds a question together: marks, endings, and the question words and particles below.
QUIET = 0.3
PARTICLES = frozenset("谁什么哪几多少怎样如何为吗呢的了是在有和与于由被把从到以")

# By length of n-gram: one letter says little but one ideograph a lot; pairs and triples carry most in every script.
WEIGHTS = {1: 0.5, 2: 1.0, 3: 1.0, 4: 0.5}
MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)


class StaticEncoder:
    """The sum of the static token vectors of the `wordllama` package, and of signs for what they do not tell apart.

    The table knows the words of Latin and Cyrillic scripts and the commonest letters of others; what it lacks it spells
    in bytes, which mean nothing by themselves. So a letter spelled in bytes gets a vector of its own, the 256 signs of
    its digest, and so do any three letters in a row where words are spelled out. Both lie in the dimensions of the
    table, where random signs are nearly orthogonal to everything.

    The package's files are read directly: importing it would reconfigure the root logger.
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
                f"The encoder of static vectors cannot be loaded: {error}.",
                remedy="Run `./install.sh embedded`, or set MIA_ENCODER=hashed.",
            ) from error
        self._table: Matrix = load_file(weights)["embedding.weight"].astype(np.float32)
        self._tokenizer = read_tokenizer(str(vocabulary))
        tokens = [self._tokenizer.id_to_token(number) for number in range(len(self._table))]
        self._space = tokens.index("▁")
        self._bytes = frozenset(number for number, token in enumerate(tokens) if token.startswith("<0x"))
        self._table[list(self._bytes)] = 0
        self._table *= np.array([[_share(token) if len(token) == 1 else 1] for token in tokens], dtype=np.float32)
        self.dimensions: int = self._table.shape[1]
        self.id = f"static-l2_supercat-{self.dimensions}-v1-{digest[:8]}"

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return float32 [n, dimensions], rows of unit length (zero for blank text)."""
        return _stack([self._vector(_prepared(text)) for text in texts], self.dimensions)

    def _vector(self, text: str) -> Vector:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        vector: Vector = self._table[encoding.ids].sum(axis=0, dtype=np.float64)
        if not text.isascii():
            vector += self._signs(self._grams(text, encoding.ids, encoding.offsets))
        return vector

    def _grams(self, text: str, tokens: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[tuple[str, float]]:
        """List what gets signs of its own in a tokenized text, with its lengths."""
        spelled = {
            start: token in self._bytes
            for token, (start, end) in zip(tokens, spans, strict=True)
            if end - start == 1 and token != self._space
        }
        grams = []
        for place, in_bytes in spelled.items():
            three = text[place - 2 : place + 1]
            if in_bytes:
                grams.append((text[place], LETTER * _share(text[place])))
            if place - 1 in spelled and place - 2 in spelled and all(map(_is_letter, three)):
                grams.append((three, TRIPLE * math.prod(map(_share, three))))
        return grams

    def _signs(self, grams: list[tuple[str, float]]) -> Vector:
        """Sum the vectors of signs of grams: each bit of a digest is a sign."""
        size = self.dimensions // 8
        digests = b"".join(hashlib.blake2b(gram.encode(), digest_size=size).digest() for gram, _ in grams)
        bits = np.unpackbits(np.frombuffer(digests, dtype=np.uint8)).reshape(len(grams), self.dimensions)
        lengths = np.array([length for _, length in grams]) / math.sqrt(self.dimensions)
        signs: Vector = 2 * lengths @ bits - lengths.sum()
        return signs


class HashedEncoder:
    """Character n-grams hashed into signed dimensions: needs no model and works in any language."""

    id = "hashed-ngrams-512-v1"
    dimensions = 512

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return float32 [n, dimensions], rows of unit length (zero for blank text)."""
        return _stack([self._vector(_prepared(text)) for text in texts], self.dimensions)

    def _vector(self, text: str) -> Vector:
        if not text:
            return np.zeros(self.dimensions)
        codes = np.frombuffer(f" {text} ".encode("utf-32-le"), dtype="<u4").astype(np.uint64)
        rolling, hashes = np.zeros(len(codes) + 1, dtype=np.uint64), []
        for size in WEIGHTS:
            rolling = rolling[:-1] * MULTIPLIERS[0] + codes[size - 1 :] + np.uint64(1)
            hashes.append(_mixed(rolling))
        weights = np.repeat(list(WEIGHTS.values()), [len(some) for some in hashes])
        grams, first, counts = np.unique(np.concatenate(hashes), return_index=True, return_counts=True)
        sign = np.where(grams >> np.uint64(63), 1.0, -1.0)
        places = (grams % np.uint64(self.dimensions)).astype(np.int64)
        weighted = sign * weights[first] * np.sqrt(counts)
        return np.bincount(places, weighted, minlength=self.dimensions).astype(np.float64)


def load_encoder(name: str, device: str = "cpu") -> Encoder:
    """Load an encoder by its settings (`MIA_ENCODER`, `MIA_ENCODER_DEVICE`).

    Any name but `static` and `hashed` is one of Hugging Face, or a folder, and only such a model uses the device.

    Raises:
        ConfigError: what it needs is not installed, or cannot be loaded.
    """
    if name == "static":
        return StaticEncoder()
    return HashedEncoder() if name == "hashed" else TransformerEncoder(name, device)


@lru_cache(maxsize=4096)
def _share(letter: str) -> float:
    """Return how much a letter counts; hiragana is the grammar of Japanese."""
    quiet = letter in PARTICLES or "\u3040" <= letter <= "\u309f" or unicodedata.category(letter)[0] in "PSZC"
    return QUIET if quiet else 1.0


def _is_letter(letter: str) -> bool:
    """Tell whether it is a letter or vowel sign that words may be spelled out with (a Latin word hardly ever is)."""
    return not letter.isascii() and unicodedata.category(letter)[0] in "LM"


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
