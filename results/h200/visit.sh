#!/usr/bin/env bash
# One visit to a GPU machine without a network, from the bare source tree:
#
#   results/h200/visit.sh wheels               beforehand, with a network: the packages it lacks
#   results/h200/visit.sh plan                 every call, its steps and how long each may take
#   results/h200/visit.sh first                under nine minutes; then second, third
#   results/h200/visit.sh report FILE          what was predicted, wanted and measured
#
# Answers go to $OUT (results/h200/visits/CALL by default): rows.jsonl, a line for each the moment
# it is known, and kept.tar.gz with logs and records. `--rehearse` does a call on the kernels' CPU
# twin, in a copy of the tree; $PYTHON names the interpreter, by default the checkout's or python3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=${here%/results/h200}
PYTHON=${PYTHON:-$([ -x "$tree/.venv/bin/python" ] && echo "$tree/.venv/bin/python" || echo python3)}

if [ "${1-}" = wheels ]; then  # for the machine's Python, not for this one
  rm -f "$here"/.wheels/*.whl  # of two versions pip installs none
  exec "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --dest "$here/.wheels" \
    --implementation cp --python-version 3.12 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --requirement "$here/visit/carried.txt" ncu-report==2026.3.1  # ncu there may lack its own
fi
# what a call compiles is there for the next one
export DSV4KV_CACHE_DIR=${DSV4KV_CACHE_DIR:-$here/.cubins}
export PYTHONPATH=$here:$tree${PYTHONPATH:+:$PYTHONPATH}
exec "$PYTHON" -m visit "$@"
