#!/usr/bin/env bash
# Everything there is to know about the kernels on one GPU, in under ten minutes: first that they
# are right, then how fast they are. Run from the top of the source tree; records go to $OUT
# (results/h200 by default).
set -uo pipefail
OUT=${OUT:-results/h200}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

echo "== right?"
"$PYTHON" -m pytest -q -m gpu tests/cuda -p no:cacheprovider 2>&1 | tee "$OUT/tests.txt" | tail -3
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$PYTHON" -m pytest -q -m gpu tests/cuda/test_gpu.py -k "cpu_backend" -p no:cacheprovider \
      >"$OUT/$tool.txt" 2>&1
    echo "$tool: exit $? ($(tail -1 "$OUT/$tool.txt"))"
  done
else
  echo "no compute-sanitizer here"
fi

echo "== how fast?"
"$PYTHON" results/h200/questions.py "$OUT/questions.json"
for batch in 64 1; do
  "$PYTHON" -m dsv4kv bench gpu --set workload.concurrency=$batch \
    --set workload.synthetic.requests=$((2 * batch)) --out "$OUT"
done
"$PYTHON" -m dsv4kv bench gpu --set cache.prepare=device --out "$OUT"
