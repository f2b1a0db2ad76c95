#!/usr/bin/env bash
# Usage: scripts/serve_model.sh MODEL [VLLM OPTION...]
# Serves a language model with vLLM on this machine's GPUs, with OpenAI's API at http://HOST:MODEL_PORT/v1.
# Needs nothing else running. MODEL is what scripts/fetch_model.sh takes, and is fetched when it is not here.
# The variables below may be set in the environment or in .env; DRY_RUN=1 prints the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
read_dotenv

# ---- yours to adjust ----
HOST="${HOST:-127.0.0.1}"
MODEL_PORT="${MODEL_PORT:-8000}"
SERVED_NAME="${SERVED_NAME:-qwen}"            # the name to ask for, the only one that released clients know
TENSOR_PARALLEL="${TENSOR_PARALLEL:-1}"       # GPUs that share the model
GPU_MEMORY="${GPU_MEMORY:-0.8}"               # share of each GPU's memory
MODEL_MAX_LEN="${MODEL_MAX_LEN:-32768}"       # tokens of a dialogue with its reply
MULTIMODAL="${MULTIMODAL:-0}"                 # 1: the model reads images
MAX_IMAGES="${MAX_IMAGES:-4}"                 # images in a dialogue: one of the question, three that search finds
CHAT_TEMPLATE="${CHAT_TEMPLATE:-configs/templates/keep_thoughts.jinja}" # or own: the one the model comes with
GENERATION_CONFIG="${GENERATION_CONFIG:-vllm}" # auto: what a request leaves open is as the model's makers advise
QUANTIZATION="${QUANTIZATION:-}"              # fp8 halves the memory of the weights
LORA_MODULES="${LORA_MODULES:-}"              # adapters by name: "executor=FOLDER planner=FOLDER"
LORA_RANK="${LORA_RANK:-64}"                  # the largest rank among them
# MIA_MODEL_KEY or else MIA_TOKEN  is the key that callers must show.
# -------------------------

[[ $# -gt 0 ]] || die "No model is named." "scripts/serve_model.sh --help says what a model is; for example: Qwen/Qwen3-8B"
[[ "$DRY_RUN" == 1 ]] || need "$VENV/bin/vllm" "Run ./install.sh serve first, with a VENV of its own."
folder=$(scripts/fetch_model.sh "$1")

# No tool or reasoning parser: tags stay in the text, where they were trained. Thoughts stay by the template, and what
# a request leaves open (top_k, repetition penalty) is neutral, as in training.
options=(--host "$HOST" --port "$MODEL_PORT" --tensor-parallel-size "$TENSOR_PARALLEL" --generation-config "$GENERATION_CONFIG"
    --gpu-memory-utilization "$GPU_MEMORY" --max-model-len "$MODEL_MAX_LEN")
read -ra names <<<"$SERVED_NAME"
options+=(--served-model-name "${names[@]}")
if [[ "$CHAT_TEMPLATE" != own ]]; then
    if [[ "$DRY_RUN" != 1 && "$CHAT_TEMPLATE" == */keep_thoughts.jinja ]] && ! grep -qsF '<|im_start|>' "$folder"/tokenizer*; then
        die "$CHAT_TEMPLATE is ChatML, which $folder does not know." "Set CHAT_TEMPLATE=own, or to a template that fits."
    fi
    # vLLM does not see by itself that the template takes a message in parts, and would move images to its front.
    options+=(--chat-template "$CHAT_TEMPLATE" --chat-template-content-format openai)
fi
[[ "$MULTIMODAL" != 1 ]] || options+=(--limit-mm-per-prompt "{\"image\": $MAX_IMAGES}")
[[ -z "$QUANTIZATION" ]] || options+=(--quantization "$QUANTIZATION")
if [[ -n "$LORA_MODULES" ]]; then
    read -ra adapters <<<"$LORA_MODULES"
    for adapter in "${adapters[@]}"; do
        [[ "$DRY_RUN" == 1 || -f "${adapter#*=}/adapter_config.json" ]] ||
            die "${adapter#*=} holds no adapter." "Write LORA_MODULES as name=folder, each folder with an adapter_config.json."
    done
    options+=(--enable-lora --max-lora-rank "$LORA_RANK" --max-loras "${#adapters[@]}" --lora-modules "${adapters[@]}")
fi

# By the environment, not by --api-key: what is in a command can be read by every user of the machine.
export VLLM_API_KEY="${MIA_MODEL_KEY:-${MIA_TOKEN:-${VLLM_API_KEY:-}}}"
[[ -n "$VLLM_API_KEY" || "$HOST" == 127.* || "$HOST" == localhost ]] ||
    log "This model will be open to other machines without a key: set MIA_MODEL_KEY"
become "$VENV/bin/vllm" serve "$folder" "${options[@]}" "${@:2}"
