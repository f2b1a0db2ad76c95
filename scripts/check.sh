#!/usr/bin/env bash
# Usage: scripts/check.sh
# Checks style, types, floors and shell scripts; runs all of them and fails at the end if any failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"

mapfile -t scripts < <(find . \( -path './.[!.]*' -o -path ./runs \) -prune -o -name '*.sh' -print)
failed=()
check() {
    log "$*"
    run "$VENV/bin/$1" "${@:2}" || failed+=("$1")
}
check ruff check .
check ruff format --check .
check mypy
check lint-imports
check shellcheck -x -P SCRIPTDIR "${scripts[@]}" .ci/run
[[ ${#failed[@]} == 0 ]] || die "Not clean: ${failed[*]}." "The lines above say where. \`ruff format .\` mends what is only layout."
