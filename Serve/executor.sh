#!/usr/bin/env bash
# Usage: Serve/executor.sh [VLLM OPTION...]
# Serves the Executor's model, which reads images, with vLLM on this machine's GPUs.
# Needs nothing else running.
# The variables below, and those of scripts/serve_model.sh, may be set in the environment or in .env; DRY_RUN=1 prints
# the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
read_dotenv

# ---- yours to adjust ----
EXECUTOR_WEIGHTS="${EXECUTOR_WEIGHTS:-Qwen/Qwen2.5-VL-7B-Instruct}" # published: LightningCreeper/MIA:Trained-Executor
EXECUTOR_PORT="${EXECUTOR_PORT:-8000}"
EXECUTOR_GPUS="${EXECUTOR_GPUS:-1}"
MULTIMODAL="${MULTIMODAL:-1}"                 # 0: the model reads text alone
# -------------------------

export MODEL_PORT="$EXECUTOR_PORT" TENSOR_PARALLEL="$EXECUTOR_GPUS" MULTIMODAL
exec scripts/serve_model.sh "$EXECUTOR_WEIGHTS" "$@"
