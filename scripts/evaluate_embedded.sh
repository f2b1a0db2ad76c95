#!/usr/bin/env bash
# Usage: scripts/evaluate_embedded.sh [--quick | --size N] [--out FOLDER] [--transcripts FILE]
# Measures what the small model reaches with its adapters, on the test splits of data/worldfacts that no adapter was
# trained on: by hops and types, in other wordings, on new chains and on questions without an answer; against the
# one-shot adapter, without reflection and with memory, each in pairs; its seconds per question; whether it reads or
# recites; and, where FILE has transcripts of the test split, how well it reflects. Prints one table with intervals,
# and writes it to FOLDER (runs/embedded) as table.md and results.json. Takes two to three hours on two cores, --quick
# minutes; --size N takes N questions of each type. Run again with the same FOLDER it goes on. DRY_RUN=1 prints the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"

OUT=runs/embedded TRANSCRIPTS=""
# Questions of each type: of the whole, of what is compared in pairs, of what fills the memory; questions of the probe.
PER_TYPE=1000 SAMPLE=30 FILL=20 PROBE=100
while [[ $# -gt 0 ]]; do
    case "$1" in
        --quick) PER_TYPE=2 SAMPLE=1 FILL=1 PROBE=4 && shift ;;
        --size)
            PER_TYPE="${2:?--size needs a number}" SAMPLE="$2" FILL="$2" PROBE=$((4 * $2))
            shift 2
            ;;
        --out) OUT="${2:?--out needs a folder}" && shift 2 ;;
        --transcripts) TRANSCRIPTS="${2:?--transcripts needs a file}" && shift 2 ;;
        *) die "There is no option $1." "scripts/evaluate_embedded.sh --help lists them." ;;
    esac
done
LOGS="$OUT"
# shellcheck source=scripts/services.sh
source scripts/services.sh

./install.sh embedded
fetch_weights

# evaluate NAME DATA PER_TYPE OPTIONS...: run `mia eval` on a file of world facts into the run folder of that name.
evaluate() {
    log "$1"
    into "$OUT/$1.txt" "$VENV/bin/mia" eval "data/worldfacts/$2.jsonl" --per-type "$3" --out "$OUT/$1" "${@:4}"
}
alone=(--memory none --concurrency 4)

start_services
for data in test test_phrasing test_unanswerable test_composition; do
    evaluate "$data" "$data" "$PER_TYPE" "${alone[@]}"
done
MAX_REFLECTION_TIMES=1 evaluate test-reflection test "$SAMPLE" "${alone[@]}"
MAX_REFLECTION_TIMES=0 evaluate test-no-reflection test "$SAMPLE" "${alone[@]}"
evaluate dev-memory dev "$FILL" --memory-path "$OUT/memory.sqlite"
evaluate test-memory test "$SAMPLE" --memory-path "$OUT/memory.sqlite"
evaluate ask test 2
run "$VENV/bin/python" benchmarks/embedded.py reading "$OUT" --size "$PROBE"
[[ -z "$TRANSCRIPTS" ]] || run "$VENV/bin/python" benchmarks/embedded.py reflection "$OUT" "$TRANSCRIPTS"
stop_services

if [[ -d data/adapters/one-shot || "$DRY_RUN" == 1 ]]; then
    export MIA_ADAPTERS=executor=data/adapters/one-shot
    start_services
    evaluate test-one-shot test "$PER_TYPE" --method one-shot "${alone[@]}"
    stop_services
else
    log "There is no adapter data/adapters/one-shot to compare with"
fi
run "$VENV/bin/python" benchmarks/embedded.py table "$OUT"
