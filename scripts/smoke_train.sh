#!/usr/bin/env bash
# Usage: scripts/smoke_train.sh [planner [KEY=VALUE...]]
# Trains a tiny Planner on two CPU cores through the very processes of a real run: search, the Executor as a service and
# verl, with a stand-in for the models of Executor and Judge that follows plans to the letter. Makes the tiny model, its
# questions and their memories first. Ends with a table of what was learnt, and with an error if that, or the agreement of the
# rollout server and the trainer, is not what it must be. STEPS=30, SEED=0, FOLDER=runs/smoke-planner; FAIL=0.1
# refuses every tenth reply of the Executor's model for good, so that its rollout fails, and JUDGE_FAIL=0.1 of the Judge's;
# with either, mia.groups.most_dropped=0.95 lets the run go on. DRY_RUN=1 prints the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"
[[ "${1:-planner}" == planner ]] || die "There is no smoke run of $1." "scripts/smoke_train.sh planner"
STEPS="${STEPS:-30}" SEED="${SEED:-0}" FAIL="${FAIL:-0}" JUDGE_FAIL="${JUDGE_FAIL:-0}" FOLDER=$(realpath -m "${FOLDER:-runs/smoke-planner}")
PYTHON="$VENV/bin/python"
[[ "$DRY_RUN" == 1 ]] || need "$PYTHON" "Run ./install.sh embedded train first."
[[ "$DRY_RUN" == 1 ]] || mkdir -p "$FOLDER"

pids=()
stop() { [[ ${#pids[@]} == 0 ]] || kill "${pids[@]}" 2>/dev/null || true; }
trap stop EXIT
# start NAME COMMAND...: start a process that writes to its log.
start() {
    if [[ "$DRY_RUN" == 1 ]]; then
        run "${@:2}"
    else
        : >"$FOLDER/$1.log" # at once: the port of the process before must not be read
        "${@:2}" >"$FOLDER/$1.log" 2>&1 &
        pids+=($!)
    fi
}
# serve NAME PORT COMMAND...: start a process and wait until it answers.
serve() {
    start "$1" "${@:3}"
    wait_for "$1" "http://127.0.0.1:$2/healthz" 60 "${pids[*]: -1}" "$FOLDER/$1.log"
}

log "The tiny model, its questions and their memories"
START="$FOLDER/start-$SEED"
[[ -d "$START" ]] || run "$PYTHON" scripts/smoke_model.py --out "$START" --seed "$SEED"
start models "$PYTHON" tests/planned.py --fail "$FAIL" --fail-judge "$JUDGE_FAIL"
model=0 # its first line of output is its port
until [[ "$DRY_RUN" == 1 ]] || read -r model <"$FOLDER/models.log"; do sleep 0.2; done
search=$(free_port) agent=$(free_port)
serve search "$search" env CORPUS_PATH="$START/corpus.jsonl" INDEX_PATH="$START/index" SEARCH_PORT="$search" \
    "$PYTHON" -m local_search serve
serve agent "$agent" env MIA_TOPK=1 MIA_EXECUTOR_URL="http://127.0.0.1:$model/v1" MIA_SEARCH_URL="http://127.0.0.1:$search" \
    AGENT_PORT="$agent" "$VENV/bin/mia" serve agent --mode train

log "Training, $STEPS steps"
run rm -rf "$FOLDER/checkpoints" "$FOLDER/metrics.jsonl" # a run goes on from what is there, and this one begins
export VERL_FILE_LOGGER_PATH="$FOLDER/metrics.jsonl"
run env PLAN_URL="http://127.0.0.1:$agent" JUDGE_URL="http://127.0.0.1:$model/v1" REF_MODEL_PATH="$START/model" \
    DATASET_TRAIN="$START/train.parquet" DATASET_VAL="$START/val.parquet" SAVE_CHECKPOINT_DIR="$FOLDER/checkpoints" \
    Planner-Train/train.sh +overlay=cpu "trainer.total_training_steps=$STEPS" "data.seed=$SEED" 'trainer.logger=[console,file]' \
    trainer.val_before_train=false mia.judge=truth "${@:2}"
run env PYTHONPATH=scripts "$PYTHON" -m smoke.report "$FOLDER/metrics.jsonl" --steps "$STEPS"
