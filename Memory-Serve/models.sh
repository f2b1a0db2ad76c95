#!/usr/bin/env bash
# Usage: Memory-Serve/models.sh manager|planner [VLLM OPTION...]
# Serves the model of Memory Manager, Judge and Router, or that of the Planner, with vLLM on this machine's GPUs.
# Needs nothing else running. Where both run on one machine, CUDA_VISIBLE_DEVICES gives each its GPUs.
# The variables below, and those of scripts/serve_model.sh, may be set in the environment or in .env; DRY_RUN=1 prints
# the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
read_dotenv

# ---- yours to adjust ----
MANAGER_WEIGHTS="${MANAGER_WEIGHTS:-Qwen/Qwen3-32B}"
MANAGER_PORT="${MANAGER_PORT:-8002}"          # that of the web search service too: give them machines of their own
MANAGER_GPUS="${MANAGER_GPUS:-4}"
PLANNER_WEIGHTS="${PLANNER_WEIGHTS:-Qwen/Qwen3-8B}" # published: LightningCreeper/MIA:Trained-Planner
PLANNER_PORT="${PLANNER_PORT:-8003}"
PLANNER_GPUS="${PLANNER_GPUS:-1}"
# -------------------------

case "${1:-}" in
    manager) model=$MANAGER_WEIGHTS port=$MANAGER_PORT gpus=$MANAGER_GPUS ;;
    planner) model=$PLANNER_WEIGHTS port=$PLANNER_PORT gpus=$PLANNER_GPUS ;;
    *) die "${1:-Nothing} is no model of this stage." "Name one: Memory-Serve/models.sh manager, or planner." ;;
esac
export MODEL_PORT="$port" TENSOR_PARALLEL="$gpus"
exec scripts/serve_model.sh "$model" "${@:2}"
