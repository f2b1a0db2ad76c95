#!/usr/bin/env bash
# Usage: scripts/quickstart.sh [QUESTIONS | --full]
# From a fresh clone to a running agent: installs, fetches a small model with its adapter, starts the model and search
# services, and answers QUESTIONS (20; --full: 200) questions of data/worldfacts in four ways: closed book, from one
# search, by the loop without memory, by the loop with memory. Needs Python 3.11 or 3.12 and a package index.
# Everything lands in .venv, models and runs. A second run starts in seconds. DRY_RUN=1 prints the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
QUESTIONS="${1:-20}"
[[ "$QUESTIONS" == --full ]] && QUESTIONS=200
DATA=data/worldfacts/dev.jsonl
RUNS="runs/quickstart-$(date +%Y%m%d-%H%M%S)"
LOGS="$RUNS"
# shellcheck source=scripts/services.sh
source scripts/services.sh

./install.sh embedded
fetch_weights
start_services

# evaluate NAME TEXT OPTIONS...: answer the questions into a run folder of that name.
evaluate() {
    log "$2"
    into "$RUNS/$1.txt" "$VENV/bin/mia" eval "$DATA" --limit "$QUESTIONS" --out "$RUNS/$1" "${@:3}"
}
# What has no memory may answer four questions at once; with a memory each question sees those before it.
# Closed book asks the model as it comes, which serves as Judge, and which goes on until it is stopped.
MIA_EXECUTOR_MODEL=judge MIA_TURN_TOKENS="${MIA_TURN_TOKENS:-64}" \
    evaluate closed-book "Closed book: the model alone" --method closed-book --concurrency 4
evaluate one-shot "One search with the question, then the answer" --method one-shot --concurrency 4
evaluate loop "The loop without memory" --memory none --concurrency 4
evaluate loop-memory "The loop with memory" --memory-path runs/memory.sqlite
run "$VENV/bin/mia" compare "$RUNS"/{closed-book,one-shot,loop,loop-memory}

bin=${VENV#"$ROOT"/}/bin
cat <<TEXT
The answers to each question are in $RUNS/*.txt.

What to try next, from this folder:
  $bin/mia serve model     in one terminal, and
  $bin/mia serve search    in another; then
  $bin/mia ask "$(sed -n '1s/.*"question": *"\([^"]*\)".*/\1/p' "$DATA")"
  $bin/mia memory list     what the agent remembers by now
TEXT
