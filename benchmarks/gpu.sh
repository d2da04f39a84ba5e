#!/usr/bin/env bash
# Everything a GPU check needs, in under eight minutes: tests and benchmarks. Results are files in $OUT.
#
#     OUT=folder benchmarks/gpu.sh
#
# It needs a Python with PyTorch, Triton and pytest, and nothing else: the code is taken from the source tree. Each part
# has its own limit; one that fails or runs out of time does not stop the others, and is told at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-benchmarks/results/gpu}
mkdir -p "$OUT"
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
unset TRITON_INTERPRET # the same tests, on the device itself

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu.sh: PyTorch sees no GPU here; nothing was run" | tee "$OUT/summary.txt" >&2
    exit 2
fi

failed=0
: > "$OUT/summary.txt"

# part NAME SECONDS COMMAND...: run it, keep what it prints in NAME.txt, and note how it ended.
part() {
    local name=$1 limit=$2 start=$SECONDS status said
    shift 2
    timeout --kill-after=10 "$limit" "$@" > "$OUT/$name.txt" 2>&1
    status=$?
    case $status in
        0) said=passed ;;
        124 | 137) said="ran out of its $limit s" failed=1 ;;
        *) said="failed, exit status $status" failed=1 ;;
    esac
    echo "$name: $said, $((SECONDS - start)) s" | tee -a "$OUT/summary.txt"
    [ "$status" = 0 ] || tail -n 15 "$OUT/$name.txt"
}

# Warnings are no errors here: these versions of PyTorch and Triton are not the ones that the tests are pinned to.
tests=("$PYTHON" -m pytest -q --maxfail=20 -p no:cacheprovider -W default)
"$PYTHON" -c 'import xdist' 2> /dev/null && tests+=(-n 6) # most of the time goes into compiling
part tests 150 "${tests[@]}" tests/interpreted
if "$PYTHON" -c 'import hypothesis' 2> /dev/null; then
    part kit 60 "${tests[@]}" -k cuda tests/test_implementations.py
else
    echo "kit: not run, hypothesis is not installed" | tee -a "$OUT/summary.txt"
fi
part benchmark 230 "$PYTHON" -m benchmarks.attention.additive --device cuda --seconds 0.3 --minutes 2.5 --out "$OUT"

echo
cat "$OUT/summary.txt"
exit $failed
