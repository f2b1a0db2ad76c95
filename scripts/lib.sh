#!/usr/bin/env bash
# What every script of this repository shares; sourced, never run. DRY_RUN=1 prints commands instead of running them.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${VENV:-$ROOT/.venv}"
DRY_RUN="${DRY_RUN:-0}"

# log TEXT: tell what is happening.
log() { printf '==> %s\n' "$1" >&2; }

# die TEXT REMEDY: end the script, saying what went wrong and what to do about it.
die() {
    printf 'error: %s\n       %s\n' "$1" "$2" >&2
    exit 1
}

# help_if_asked SCRIPT ARGUMENTS...: show the comment at the top of a script when its first argument is --help.
help_if_asked() {
    [[ "${2:-}" == -h || "${2:-}" == --help ]] || return 0
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$1"
    exit 0
}

# need COMMAND REMEDY: end the script unless the command exists.
need() { command -v "$1" >/dev/null || die "$1 is not here." "$2"; }

# run COMMAND...: run it, or print it when DRY_RUN=1.
run() {
    if [[ "$DRY_RUN" == 1 ]]; then
        printf '%q ' "$@"
        printf '\n'
    else
        "$@"
    fi
}

# become COMMAND...: turn this process into the command, so that a signal to the script ends it; or print it when
# DRY_RUN=1. The last line of a script that serves.
become() {
    [[ "$DRY_RUN" == 1 ]] || exec "$@"
    run "$@"
}

# read_dotenv: take from .env what the environment does not have, as the processes do, so that no default hides it.
read_dotenv() {
    local line name value
    [[ -f .env ]] || return 0
    while IFS= read -r line || [[ -n "$line" ]]; do
        [[ "$line" =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)[[:space:]]*=[[:space:]]*(.*)$ ]] || continue
        name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
        if [[ "$value" =~ ^\"([^\"]*)\" || "$value" =~ ^\'([^\']*)\' ]]; then
            value=${BASH_REMATCH[1]}
        else
            value=${value%%[[:space:]]#*} value=${value%"${value##*[![:space:]]}"}
        fi
        [[ -n "${!name:-}" ]] || export "$name=$value"
    done <.env
}

# free_port: print a port that nothing listens on.
free_port() {
    if [[ "$DRY_RUN" == 1 ]]; then
        echo 0
    else
        "$VENV/bin/python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
    fi
}

# answers URL [STATUS]: whether http://HOST[:PORT]/PATH answers 200, or a status of that pattern. Bash alone, as a fresh
# machine may lack curl.
answers() {
    [[ "$1" =~ ^http://([^:/]+)(:([0-9]+))?(/.*)$ ]] || die "$1 is no http://HOST:PORT/PATH." "Correct the address."
    (
        exec 3<>"/dev/tcp/${BASH_REMATCH[1]}/${BASH_REMATCH[3]:-80}"
        printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "${BASH_REMATCH[4]}" "${BASH_REMATCH[1]}" >&3
        read -r -t 5 _ status _ <&3
        [[ "$status" =~ ^${2:-200}$ ]]
    ) 2>/dev/null
}

# await NAME URL REMEDY: wait, WAIT_SECONDS (600) at most, for a server that was started elsewhere; one that asks for a
# key is there. Bash cannot speak https, so such a server is left to the process that uses it.
await() {
    if [[ "$DRY_RUN" == 1 ]]; then
        printf 'wait for %s\n' "$2"
        return
    fi
    local seconds=${WAIT_SECONDS:-600} end
    if [[ "$2" == https://* ]] || answers "$2" '[234]..'; then
        return
    fi
    log "Waiting for $1 at $2, ${seconds} s at most"
    end=$((SECONDS + seconds))
    until answers "$2" '[234]..'; do
        [[ "$SECONDS" -lt "$end" ]] || die "$1 did not answer at $2 within $seconds s." "$3"
        sleep 1
    done
}

# wait_for NAME URL SECONDS PID LOG: wait until the process answers 200; show its log when it ends or is too slow.
wait_for() {
    if [[ "$DRY_RUN" == 1 ]]; then
        printf 'wait for %s\n' "$2"
        return
    fi
    local end=$((SECONDS + $3)) what="did not answer at $2 within $3 s"
    until answers "$2"; do
        kill -0 "$4" 2>/dev/null || what="ended before it answered at $2"
        if [[ "$what" == ended* || "$SECONDS" -ge "$end" ]]; then
            tail -n 20 "$5" >&2
            die "$1 $what." "The lines above are the end of $5."
        fi
        sleep 0.2
    done
}
