#!/usr/bin/env bash
# Everything a GPU check needs, in under eight minutes: tests and benchmarks. Results are files in $OUT.
#
#     OUT=folder [PARTS="calls recording"] [DATA=corpus] benchmarks/gpu.sh
#
# Parts: tests, kit, calls, recording, and of the translator tokens, decode and whole (with DATA, the folder of a corpus;
# whole is a training from its beginning to its end, and runs when it is named).
#
# It needs a Python with PyTorch, Triton and pytest, and nothing else: the code is taken from the source tree. Each part
# has its own limit; one that fails or runs out of time does not stop the others, and is told at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-benchmarks/results/gpu}
PARTS=${PARTS:-tests kit calls recording tokens decode}
mkdir -p "$OUT"
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
unset TRITON_INTERPRET # the same tests, on the device itself

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu.sh: PyTorch sees no GPU here; nothing was run" | tee "$OUT/summary.txt" >&2
    exit 2
fi

failed=0
: > "$OUT/summary.txt"

# part NAME SECONDS COMMAND...: run it if it is wanted, keep what it prints in NAME.txt, and note how it ended.
part() {
    local name=$1 limit=$2 start=$SECONDS status said
    shift 2
    [[ " $PARTS " = *" $name "* ]] || return 0
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
part calls 170 "$PYTHON" -m benchmarks.attention.gpu --only calls --minutes 2.3 --out "$OUT"
part recording 30 "$PYTHON" -m benchmarks.attention.gpu --only recording --out "$OUT"
translator=("$PYTHON" -m benchmarks.translation.gpu --out "$OUT")
if [ -n "${DATA:-}" ]; then
    part tokens 60 "${translator[@]}" --tokens-per-second --data "$DATA"
    part decode 60 "${translator[@]}" --decode --data "$DATA"
    part whole 420 "${translator[@]}" --whole --data "$DATA"
fi
part tests 90 "${tests[@]}" tests/interpreted tests/core/test_graphs.py
if "$PYTHON" -c 'import hypothesis' 2> /dev/null; then
    part kit 45 "${tests[@]}" -k cuda tests/core/test_implementations.py
else
    echo "kit: not run, hypothesis is not installed" | tee -a "$OUT/summary.txt"
fi

echo
cat "$OUT/summary.txt"
exit $failed
