#!/usr/bin/env bash
# Every module alone, and every service in process.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
run "$VENV/bin/python" -m pytest tests/unit tests/service
