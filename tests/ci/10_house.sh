#!/usr/bin/env bash
# Style, types, floors and shell scripts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
run scripts/check.sh
