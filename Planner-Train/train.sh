#!/usr/bin/env bash
# Usage: Planner-Train/train.sh [+overlay=one_gpu|cpu] [KEY=VALUE...]
# Trains the Planner by GRPO (verl). A run that stopped goes on from its last checkpoint.
# Needs the Executor as a service (Serve/agent.sh train) and, unless mia.judge=exact, the Judge's model
# (Memory-Serve/models.sh manager).
# The variables below may be set in the environment or in .env; DRY_RUN=1 prints the command and the composed configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
read_dotenv

# ---- yours to adjust ----
PLAN_URL="${PLAN_URL:-http://127.0.0.1:5000}"        # the Executor's service; a released URL ending in /plan works too
REPLAN_URL="${REPLAN_URL:-$PLAN_URL}"                # the same service
JUDGE_URL="${JUDGE_URL:-http://127.0.0.1:8002/v1}"   # the model that grades
DATASET_TRAIN="${DATASET_TRAIN:-data/planner/train.parquet}"
DATASET_VAL="${DATASET_VAL:-data/planner/val.parquet}"
REF_MODEL_PATH="${REF_MODEL_PATH:-models/Qwen3-8B}"  # what is trained: a folder, as scripts/fetch_model.sh makes one
SAVE_CHECKPOINT_DIR="${SAVE_CHECKPOINT_DIR:-runs/planner-train}"
WANDB_MODE="${WANDB_MODE:-offline}"                  # online with WANDB_API_KEY
WAIT_SECONDS="${WAIT_SECONDS:-600}"                  # how long to wait for services
# -------------------------

PLAN_URL=${PLAN_URL%/} PLAN_URL=${PLAN_URL%/plan}
REPLAN_URL=${REPLAN_URL%/} REPLAN_URL=${REPLAN_URL%/replan} REPLAN_URL=${REPLAN_URL%/plan}
[[ "$PLAN_URL" == "$REPLAN_URL" ]] ||
    die "PLAN_URL ($PLAN_URL) and REPLAN_URL ($REPLAN_URL) are not one service." "Set PLAN_URL alone: plans go on there."
[[ "$DRY_RUN" == 1 ]] || need "$VENV/bin/python" "Run ./install.sh train first."
await "The Executor's service" "$PLAN_URL/healthz" "Start Serve/agent.sh train, or correct PLAN_URL."

export PLAN_URL JUDGE_URL DATASET_TRAIN DATASET_VAL REF_MODEL_PATH SAVE_CHECKPOINT_DIR WANDB_MODE
for argument in "$@"; do
    # Every process of a run on the CPU learns of it this way.
    [[ "$argument" != "+overlay=cpu" ]] || export VERL_USE_EXTERNAL_MODULES=mia.training.cpu OMP_NUM_THREADS=1
done
if [[ "$DRY_RUN" == 1 && -x "$VENV/bin/python" ]]; then
    "$VENV/bin/python" -m mia.training Planner-Train/config.yaml --show "$@"
fi
become "$VENV/bin/python" -m mia.training Planner-Train/config.yaml "$@"
