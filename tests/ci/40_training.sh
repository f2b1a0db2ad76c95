#!/usr/bin/env bash
# Training, with an environment of its own: the trainers' tests, two steps of a warm start, converted and checked, and three
# steps of a Planner's training through the processes of a real run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export VENV="${TRAIN_VENV:-$PWD/.venv-train}"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
./install.sh embedded dev train
run "$VENV/bin/python" -m pytest tests/unit/scripts
run env OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest -W ignore tests/training # verl, Ray and torch warn as they load
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
run "$VENV/bin/python" scripts/warm_start.py traces --questions 40 --out "$scratch/loop.jsonl"
run "$VENV/bin/python" scripts/warm_start.py train --traces "$scratch/loop.jsonl" --out "$scratch/adapter" --steps 2 --tokens 2048
run "$VENV/bin/python" -m mia.embedded.adapters models/SmolLM2-135M-Instruct.Q4_1.gguf "$scratch/adapter" --check
STEPS=3 FOLDER="$scratch/planner" run scripts/smoke_train.sh planner
