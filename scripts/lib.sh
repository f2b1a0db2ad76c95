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

# free_port: print a port that nothing listens on.
free_port() {
    if [[ "$DRY_RUN" == 1 ]]; then
        echo 0
    else
        "$VENV/bin/python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
    fi
}

# answers URL: whether http://HOST:PORT/PATH answers 200. Bash alone, as a fresh machine may lack curl.
answers() {
    [[ "$1" =~ ^http://([^:/]+):([0-9]+)(/.*)$ ]] || die "$1 is no http://HOST:PORT/PATH." "Correct the address."
    (
        exec 3<>"/dev/tcp/${BASH_REMATCH[1]}/${BASH_REMATCH[2]}"
        printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "${BASH_REMATCH[3]}" "${BASH_REMATCH[1]}" >&3
        read -r -t 5 _ status _ <&3
        [[ "$status" == 200 ]]
    ) 2>/dev/null
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
