#!/usr/bin/env bash
# Usage: Memory-Serve/memory.sh [OPTION OF mia serve memory...]
# Serves memory and Planner to clients and to the Executor's trainer (POST /memory, /plan, /judge_replan, /replan, ...).
# Needs the models at the URLs below: Memory-Serve/models.sh manager and planner, or any others with OpenAI's API.
# The variables below may be set in the environment or in .env; DRY_RUN=1 prints the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
read_dotenv

# ---- yours to adjust ----
HOST="${HOST:-127.0.0.1}"
MEMORY_PORT="${MEMORY_PORT:-${PORT:-5000}}"
MIA_MANAGER_URL="${MIA_MANAGER_URL:-${MEMORY_URL:-http://127.0.0.1:8002/v1}}" # the model that writes workflows
MIA_PLANNER_URL="${MIA_PLANNER_URL:-${PLAN_URL:-http://127.0.0.1:8003/v1}}"   # the model that plans
MIA_MEMORY_PATH="${MIA_MEMORY_PATH:-runs/memory-serve.sqlite}"                # the bank; it stays when this ends
MEMORY_DIR="${MEMORY_DIR:-runs/memory}"       # the folder that /save_memory and /load_memory stay in
MIA_COMPRESSION="${MIA_COMPRESSION:-model}"   # how an episode becomes a workflow: model, extractive, none
MIA_COLD_START="${MIA_COLD_START:-false}"     # true: the Manager's model plans while few memories are found
WAIT_SECONDS="${WAIT_SECONDS:-600}"           # how long to wait for the models
# -------------------------

[[ "$DRY_RUN" == 1 ]] || need "$VENV/bin/mia" "Run ./install.sh embedded first."
await "The Memory Manager's model" "$MIA_MANAGER_URL/models" "Start Memory-Serve/models.sh manager, or correct MIA_MANAGER_URL."
await "The Planner's model" "$MIA_PLANNER_URL/models" "Start Memory-Serve/models.sh planner, or correct MIA_PLANNER_URL."
become env HOST="$HOST" MEMORY_PORT="$MEMORY_PORT" MIA_MANAGER_URL="$MIA_MANAGER_URL" MIA_PLANNER_URL="$MIA_PLANNER_URL" \
    MIA_MEMORY_PATH="$MIA_MEMORY_PATH" MEMORY_DIR="$MEMORY_DIR" MIA_COMPRESSION="$MIA_COMPRESSION" \
    MIA_COLD_START="$MIA_COLD_START" "$VENV/bin/mia" serve memory "$@"
