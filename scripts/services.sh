#!/usr/bin/env bash
# The services of the one-machine stack, for scripts that start them on free ports and end them with themselves.
# Sourced after lib.sh, never run. LOGS is the folder of their logs.

services=()

# stop_services: end all that was started.
stop_services() {
    [[ ${#services[@]} == 0 ]] && return
    kill "${services[@]}" 2>/dev/null || true
    wait "${services[@]}" 2>/dev/null || true
    services=()
}
trap stop_services EXIT

# start NAME PATH PORT: start `mia serve NAME` with its output in a log, and wait until PATH answers at its port.
start() {
    local log="$LOGS/$1.log" process=""
    log "Starting the $1 service; its log is $log"
    if [[ "$DRY_RUN" == 1 ]]; then
        run "$VENV/bin/mia" serve "$1"
    else
        "$VENV/bin/mia" serve "$1" >"$log" 2>&1 &
        process=$!
        services+=("$process")
    fi
    wait_for "The $1 service" "http://127.0.0.1:$3$2" 120 "$process" "$log"
}

# into FILE COMMAND...: run it with what it prints in a file.
into() {
    if [[ "$DRY_RUN" == 1 ]]; then
        run "${@:2}"
    else
        "${@:2}" >"$1"
    fi
}

# start_services: start search and model, and point everything that follows at them.
start_services() {
    SEARCH_PORT=$(free_port)
    export HOST=127.0.0.1 SEARCH_PORT MIA_SEARCH_URL="http://127.0.0.1:$SEARCH_PORT"
    run mkdir -p "$LOGS"
    start search /readyz "$SEARCH_PORT"
    MODEL_PORT=$(free_port)
    export MODEL_PORT
    start model /health "$MODEL_PORT"
}

# fetch_weights: bring the small model here, merge the adapters that belong to it, and check them.
fetch_weights() {
    log "Fetching the small model, unless it is here (93 MB)"
    run "$VENV/bin/python" -m mia.embedded.model
    local adapter="data/adapters/worldfacts" weights="models/SmolLM2-135M-Instruct.Q4_1.gguf"
    if [[ "${MIA_MODEL:-smollm2}" == smollm2 && "${MIA_ADAPTERS:-auto}" == auto && -d "$adapter" ]]; then
        log "Merging its adapter, unless that is done, and checking the result"
        run "$VENV/bin/python" -m mia.embedded.adapters "${MIA_MODELS:-models}/${weights##*/}" "$adapter" --check
    fi
}
