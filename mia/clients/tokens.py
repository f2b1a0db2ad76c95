"""Token counts by the serving endpoint: exact over HTTP where they decide, and a rule fitted to it for arithmetic."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

from mia.errors import ModelUnavailable
from mia.text import CUT, border

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mia.runtime.http import Service

_KEPT = 1024  # texts whose counts are remembered
_MARGIN = 1.1  # text has more rare words in it than the samples

# Kinds of text that tokenizers treat alike: words, runs that are none (numbers, hex, base64), ASCII signs, other
# alphabets, Chinese, Japanese and Korean, and all the rest (Indic scripts, emoji).
_RUN = re.compile(
    r"(?P<words>(?:[A-Za-z]{1,23}(?![A-Za-z0-9]) ?| )+)|(?P<digits>[A-Za-z0-9]+)|(?P<signs>[\x00-\x7f])"
    r"|(?P<alphabets>[\x80-\u07ff]+)|(?P<cjk>[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]+)|(?P<rest>[^\x00-\x7f])"
)
# What a rule is fitted to: for each kind, the sample that takes most tokens per character.
_SAMPLES = {
    "words": (
        "The committee published findings of a long search through archives that Kaczmarek and Ouagadougou had kept",
    ),
    "digits": (
        "1889 27 2024 640 3 1500000 7",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c",
        "aGVsbG8gd29ybGQ1c2Vj",
    ),
    "signs": (""".,;:!?'"()[]{}<>|/\\@#$%^&*_+-=~`\n""", ', "a": [("b", \'c\')];\n\n\t{x_y}: <z/>.'),
    "alphabets": (
        "Башня построена инженером и названа по его имени, её посещают миллионы",
        "برج حديدي يقع في باريس بالقرب من نهر السين وسمي على اسم المهندس",
        "Ο πύργος κατασκευάστηκε από μηχανικό και πήρε το όνομά του",
    ),
    "cjk": (
        "埃菲尔铁塔是位于法国巴黎战神广场上的铁制镂空塔，世界著名建筑，也是巴黎城市地标之一。",
        "エッフェル塔は、フランスの首都パリの象徴的な名所となっている塔である。",
        "에펠탑은 프랑스 파리의 상징적 건축물로 만국박람회를 위해 세워졌다",
    ),
    "rest": ("एफिल टावर पेरिस में स्थित एक लौह टावर है", "หอไอเฟลเป็นหอคอยโครงสร้างเหล็กในกรุงปารีส", "😀🎉🗼🤖✨🔥👩‍👧🇫🇷"),
}


class FittedCounter:
    """Counts by kinds of text: so many tokens per character of each, as an endpoint's tokenizer takes for samples.

    Close, and too many rather than too few for text that looks like the samples; no bound for what does not.
    """

    def __init__(self, rates: Mapping[str, float]) -> None:
        self._rates = rates

    def count(self, text: str) -> int:
        """Return the estimate for a text."""
        return math.ceil(sum(rate * (end - start) for start, end, rate in self._runs(text)))

    def cut(self, text: str, tokens: int) -> str:
        """Return the text, or as much of its head as fits with the marker. Cuts between characters as read."""
        marker = self.count(CUT)
        spent, end = 0.0, 0
        for start, stop, rate in self._runs(text):
            if spent <= tokens - marker:
                end = min(stop, start + int((tokens - marker - spent) / rate))
            spent += rate * (stop - start)
            if spent > tokens:
                return text[: border(text, end)] + CUT if tokens >= marker else ""
        return text

    def _runs(self, text: str) -> Iterator[tuple[int, int, float]]:
        for run in _RUN.finditer(text):
            yield run.start(), run.end(), self._rates[run.lastgroup or "rest"]


class Tokenizer:
    """The `/tokenize` of one endpoint. vLLM takes the text as `prompt`, llama.cpp as `content`."""

    def __init__(self, service: Service, model: str, field: str) -> None:
        self._service = service
        self._model = model
        self._field = field
        self._counts: dict[str, int] = {}

    async def count(self, text: str, deadline: float = 10.0) -> int:
        """Return the exact number of tokens of a text, without those that a chat template adds.

        Raises:
            ModelUnavailable: the endpoint does not answer, or has no such route.
        """
        if text not in self._counts:
            body = {"model": self._model, self._field: text, "add_special_tokens": False}
            # The route stands beside /v1, not under it; a URL is resolved before it is sent.
            path = "../tokenize" if self._service.url.endswith("/v1") else "tokenize"
            found = (await self._service.post(path, body, deadline=deadline)).get("tokens")
            if not isinstance(found, list) or (text and not found):  # none: it takes the text by another name
                raise ModelUnavailable(f"{self._service.url} has no /tokenize.", service="model", retryable=False)
            if len(self._counts) >= _KEPT:
                self._counts.pop(next(iter(self._counts)))
            self._counts[text] = len(found)
        return self._counts[text]

    async def count_all(self, texts: Iterable[str], deadline: float) -> list[int]:
        """Return the counts of texts, all within `deadline` seconds; errors as for `count`."""
        ends = time.monotonic() + deadline
        return [await self.count(text, max(ends - time.monotonic(), 0.0)) for text in texts]

    async def fit(self, deadline: float = 10.0) -> FittedCounter:
        """Return the rule fitted to this tokenizer's counts of samples of all kinds; errors as for `count`."""
        samples = [sample for kind in _SAMPLES.values() for sample in kind]
        counts = dict(zip(samples, await self.count_all(samples, deadline), strict=True))
        return FittedCounter(
            {kind: _MARGIN * max(counts[text] / len(text) for text in texts) for kind, texts in _SAMPLES.items()}
        )
