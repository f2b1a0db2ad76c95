#!/usr/bin/env bash
# Usage: local_search/run.sh
# Serves offline search on this machine (POST /retrieve), building the index first when it is missing or its corpus changed.
# Needs nothing else running. The variables below may be set in the environment; DRY_RUN=1 prints the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"

# ---- yours to adjust ----
CORPUS_PATH="${CORPUS_PATH:-data/worldfacts/corpus.jsonl}"   # one JSON object a line, or .gz
INDEX_PATH="${INDEX_PATH:-runs/index}"                       # a folder of its own for every corpus
HOST="${HOST:-127.0.0.1}"
SEARCH_PORT="${SEARCH_PORT:-8001}"
MIA_SEARCH_LANGUAGE="${MIA_SEARCH_LANGUAGE:-auto}"           # english, german, ..., none
MIA_SEARCH_WORKERS="${MIA_SEARCH_WORKERS:-2}"                # processes that build the index
MIA_SEARCH_THREADS="${MIA_SEARCH_THREADS:-2}"
# -------------------------

[[ "$DRY_RUN" == 1 ]] || need "$VENV/bin/python" "Run ./install.sh search first."
export MIA_SEARCH_THREADS
run "$VENV/bin/python" -m local_search serve --corpus "$CORPUS_PATH" --index "$INDEX_PATH" --host "$HOST" \
    --port "$SEARCH_PORT" --language "$MIA_SEARCH_LANGUAGE" --workers "$MIA_SEARCH_WORKERS"
