#!/usr/bin/env bash
# Usage: Serve/agent.sh train|ttrl|ttrl-no-truth|streaming [OPTION OF mia serve agent...]
# Serves the Executor to the Planner's trainers (POST /plan, /replan) and, in all modes but train, the memory (/memory, ...).
# Needs the Executor's model (Serve/executor.sh), search (local_search/run.sh) and, in all modes but train, the model of
# Memory Manager and Judge (Memory-Serve/models.sh manager).
# The variables below may be set in the environment or in .env; DRY_RUN=1 prints the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
read_dotenv

# ---- yours to adjust ----
HOST="${HOST:-127.0.0.1}"
AGENT_PORT="${AGENT_PORT:-${PORT:-5000}}"
MIA_EXECUTOR_URL="${MIA_EXECUTOR_URL:-${AGENT_URL:-http://127.0.0.1:8000/v1}}"
MIA_SEARCH_URL="${MIA_SEARCH_URL:-${SERVICE_URL:-http://127.0.0.1:8001}}"
MIA_MANAGER_URL="${MIA_MANAGER_URL:-${MEMORY_URL:-http://127.0.0.1:8002/v1}}" # workflows, and which answer counts
MIA_JUDGE="${MIA_JUDGE:-truth}"               # what grades the report of ttrl-no-truth: exact match alone, or truth: a model too
MIA_JUDGE_URL="${MIA_JUDGE_URL:-${JUDGE_URL:-http://127.0.0.1:8002/v1}}"
MIA_FORMAT="${MIA_FORMAT:-mia}"               # release-serve for published weights
MIA_VISION="${MIA_VISION:-true}"              # whether the Executor's model reads images
MAX_LLM_CALL_PER_RUN="${MAX_LLM_CALL_PER_RUN:-20}"
PARQUET_PATH="${PARQUET_PATH:-}"              # data sets with images, commas between; else images come over HTTP
TTRL_SAVE="${TTRL_SAVE:-runs/ttrl}"           # where memory files and evaluated answers are written
MIA_MEMORY_PATH="${MIA_MEMORY_PATH:-$TTRL_SAVE/memory.sqlite}" # the bank; it stays when this ends
WAIT_SECONDS="${WAIT_SECONDS:-600}"           # how long to wait for models and search
# -------------------------

MODE="${1:-}"
case "$MODE" in
    train | ttrl | ttrl-no-truth | streaming) ;;
    *) die "${MODE:-Nothing} is no mode." "Name one: Serve/agent.sh train, ttrl, ttrl-no-truth or streaming." ;;
esac
[[ "$DRY_RUN" == 1 ]] || need "$VENV/bin/mia" "Run ./install.sh embedded first."
await "The Executor's model" "$MIA_EXECUTOR_URL/models" "Start Serve/executor.sh, or correct MIA_EXECUTOR_URL."
await "Search" "${MIA_SEARCH_URL%/}/healthz" "Start local_search/run.sh, or correct MIA_SEARCH_URL."
[[ "$MODE" == train ]] ||
    await "The Memory Manager's model" "$MIA_MANAGER_URL/models" "Start Memory-Serve/models.sh manager, or correct MIA_MANAGER_URL."
[[ "$MODE" != ttrl-no-truth || "$MIA_JUDGE" != truth ]] ||
    await "The Judge's model" "$MIA_JUDGE_URL/models" "Start Memory-Serve/models.sh manager, or correct MIA_JUDGE_URL."
become env HOST="$HOST" AGENT_PORT="$AGENT_PORT" MIA_EXECUTOR_URL="$MIA_EXECUTOR_URL" MIA_SEARCH_URL="$MIA_SEARCH_URL" \
    MIA_MANAGER_URL="$MIA_MANAGER_URL" MIA_JUDGE="$MIA_JUDGE" MIA_JUDGE_URL="$MIA_JUDGE_URL" MIA_FORMAT="$MIA_FORMAT" \
    MIA_VISION="$MIA_VISION" MAX_LLM_CALL_PER_RUN="$MAX_LLM_CALL_PER_RUN" PARQUET_PATH="$PARQUET_PATH" TTRL_SAVE="$TTRL_SAVE" \
    MIA_MEMORY_PATH="$MIA_MEMORY_PATH" "$VENV/bin/mia" serve agent --mode "$MODE" "${@:2}"
