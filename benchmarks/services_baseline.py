"""A plain threaded server of /memory, as a Flask app is one, written to be compared with: a thread per connection.

    python benchmarks/services_baseline.py BANK [--encoder static]

It holds a bank's memories in lists and arrays, scans them as the service does, and does nothing besides: no checks of
what it is sent, no look at what other processes wrote, no limits, metrics, log or durability. Its first line of output
is its port.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mia.memory.storage import Storage
from mia.runtime.encoder import load_encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mia.protocols import Encoder
    from mia.types import Workflow


class Scan:
    """Memories, and the vectors of their questions as the rows of a matrix."""

    def __init__(self, memories: Sequence[Workflow], encoder: Encoder) -> None:
        self._memories = memories
        self._encoder = encoder
        self._questions = encoder.encode([memory.question for memory in memories])
        self._correct = np.array([memory.correct for memory in memories])
        uses, wins = (np.array([getattr(each, name) for each in memories], np.float32) for name in ("uses", "wins"))
        self._merits = 0.15 * wins / np.maximum(uses, 1) + 0.15 / (1 + uses)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the best successes and failures for a question."""
        (vector,) = self._encoder.encode([request["question"]])
        # Not by `@`: the threads of BLAS, two for each of the server's, would all but stop it.
        scores = 0.7 * np.einsum("ij,j->i", self._questions, vector) + self._merits
        best = [self._best(np.where(label, scores, -np.inf), 2) for label in (self._correct, ~self._correct)]
        shown = [self._memories[row] for rows in best for row in rows]
        entries = [
            f"[{n}] Question: {each.question}\nWhat was done:\n{each.summary}" for n, each in enumerate(shown, 1)
        ]
        pos_indices, neg_indices = ([self._memories[row].id for row in rows] for rows in best)
        return {"context": "\n\n".join(entries), "pos_indices": pos_indices, "neg_indices": neg_indices}

    @staticmethod
    def _best(scores: NDArray[np.float32], count: int) -> list[int]:
        rows = np.argpartition(scores, -count)[-count:]
        best: list[int] = rows[np.argsort(-scores[rows])].tolist()
        return best


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bank", type=Path)
    parser.add_argument("--encoder", default="static")
    options = parser.parse_args()
    with closing(Storage(options.bank)) as storage:
        scan = Scan(storage.list(None), load_encoder(options.encoder, "cpu"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as the service keeps them
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            requests = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps([scan.answer(request) for request in requests], ensure_ascii=False).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
