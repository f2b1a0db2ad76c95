#!/usr/bin/env bash
# The whole house with the small model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
run "$VENV/bin/python" -m pytest tests/e2e
