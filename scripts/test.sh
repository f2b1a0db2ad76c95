#!/usr/bin/env bash
# Usage: scripts/test.sh [AREA...]
# Sets up all that the tests need and runs tests/ci/*.sh in order, or the areas named: house, unit, e2e, ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
help_if_asked "${BASH_SOURCE[0]}" "$@"

scripts=()
for area in "${@:-*}"; do
    mapfile -t found < <(compgen -G "tests/ci/[0-9]*_$area.sh" | sort)
    [[ ${#found[@]} -gt 0 ]] || die "There is no area $area." "There are: $(basename -as .sh tests/ci/*.sh | cut -d_ -f2- | xargs)"
    scripts+=("${found[@]}")
done

./install.sh embedded data dev
log "Fetching the small model, unless it is here"
run "$VENV/bin/python" -m mia.embedded.model

summary="" failed=0
for script in "${scripts[@]}"; do
    log "$script"
    start=$SECONDS result=passed
    run bash "$script" || { result=FAILED && failed=$((failed + 1)); }
    summary+=$(printf '%-24s %-8s %4d s' "$(basename "$script" .sh)" "$result" "$((SECONDS - start))")$'\n'
done
printf '\n%s\nareas: %d passed, %d failed\n' "$summary" "$((${#scripts[@]} - failed))" "$failed"
exit "$((failed > 0))"
