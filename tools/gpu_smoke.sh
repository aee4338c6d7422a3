#!/usr/bin/env bash
# Everything that needs a GPU, in one command and at most 8 minutes: the series on a copy of torch,
# its own tests with NCCL, what casting forward inputs costs, and some of upstream's
# mixed-precision tests before and after.
#
#   tools/gpu_smoke.sh
#
# TORCH_PYTHON   a Python that has torch; by default the runtime of the base v2.6.0 is fetched.
#                That torch is copied and never changed. With it, upstream's tests are left out.
# TOOL_PYTHON    a Python that has this tool's dependencies; by default .venv, which make builds.
# SMOKE_SECONDS  the time for all of it; default 480.
#
# Exit status: 0 all passed, 1 something failed or took too long, 2 no GPU or something is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BASE=v2.6.0 # has upstream's tests, which a wheel lacks
readonly SERIES_TESTS=torch_overlay/test/distributed/fsdp/test_fsdp_nested_precision.py
readonly UPSTREAM_TESTS=test/distributed/fsdp/test_fsdp_mixed_precision.py
# About ten of its tests, four of them for a single GPU: all would take longer than there is time.
readonly UPSTREAM_NAMES="SubmodulePrecision or Unsharded or IgnoredModules"
readonly BUDGET="${SMOKE_SECONDS:-480}"

export OMP_NUM_THREADS=1
failed=()

die() {
    echo "gpu_smoke: $*" >&2
    exit 2
}

# Run one step within what is left of the time; the others go on if it fails.
step() {
    local name="$1" left=$((BUDGET - SECONDS)) status=0
    shift
    echo "==> $name"
    if ((left <= 0)); then
        status=124
    else
        timeout --kill-after=10 "$left" "$@" || status=$?
    fi
    case $status in
        0) echo "==> $name: passed" ;;
        124 | 137) failed+=("$name (out of time)") ;;
        *) failed+=("$name (status $status)") ;;
    esac
}

gpus() {
    nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true
}

torch_gpus() {
    "$1" -c 'import torch; print(torch.cuda.device_count())'
}

# A virtual environment like that of the torch given, which shares its files by hard links where it
# can; the tool replaces files and never edits them.
copy_torch() {
    local python="$1" copy="$2" from to
    from="$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')"
    "$python" -m venv --without-pip --system-site-packages "$copy"
    to="$("$copy/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    cp -al "$from/." "$to/" 2>/dev/null || cp -a "$from/." "$to/"
}

# What pytest's report says was left out, which with more than one GPU is a failure.
readonly COUNT_TESTS='
import sys
from xml.etree import ElementTree

report, gpus = sys.argv[1], int(sys.argv[2])
cases = ElementTree.parse(report).findall(".//testcase")
left_out = [case.get("name") for case in cases if case.find("skipped") is not None]
print(f"{len(cases) - len(left_out)} of {len(cases)} tests ran on {gpus} GPU(s)")
for name in left_out:
    print(f"  left out, for lack of a second GPU: {name}" if gpus == 1 else f"  left out: {name}")
sys.exit(len(left_out) == len(cases) or (gpus > 1 and bool(left_out)))
'

[[ "$(gpus)" -gt 0 ]] || die "no GPU: nvidia-smi lists none on this machine"
if [[ -z "${TOOL_PYTHON:-}" ]]; then
    make --no-print-directory venv || die "cannot build .venv; name a Python in TOOL_PYTHON"
    TOOL_PYTHON=.venv/bin/python
fi
tool=(env "PYTHONPATH=$PWD/tools${PYTHONPATH:+:$PYTHONPATH}" "$TOOL_PYTHON" -m overlay)
"${tool[@]}" --help >/dev/null || die "$TOOL_PYTHON lacks the tool's dependencies"

upstream=yes
if [[ -n "${TORCH_PYTHON:-}" ]]; then
    upstream="upstream's tests run on the torch of $BASE: leave TORCH_PYTHON out"
else
    "${tool[@]}" base fetch "$BASE" || die "cannot fetch $BASE; name a Python with torch in TORCH_PYTHON"
    TORCH_PYTHON="$("${tool[@]}" base fetch "$BASE" --json |
        "$TOOL_PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["runtime"])')/bin/python"
    [[ -f "$("${tool[@]}" base path "$BASE")/$UPSTREAM_TESTS" ]] ||
        upstream="the source of $BASE came without its tests"
fi
count="$(torch_gpus "$TORCH_PYTHON")" || die "$TORCH_PYTHON cannot import torch"
((count > 0)) || die "no GPU: the torch of $TORCH_PYTHON sees none"
echo "==> $count GPU(s): $(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | xargs)"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for copy in venv stock; do
    copy_torch "$TORCH_PYTHON" "$work/$copy" || die "cannot copy the torch of $TORCH_PYTHON to $work"
done
"$work/venv/bin/python" -c 'import expecttest, pytest' ||
    "$TOOL_PYTHON" -m pip --python "$work/venv/bin/python" install --quiet expecttest pytest ||
    die "$TORCH_PYTHON has no pytest and expecttest, and pip cannot install them"

step "apply the series" "${tool[@]}" apply "$work/venv"
# With no settings of the repository's, which are for the tool's own tests.
step "the series' own tests" "$work/venv/bin/python" -m pytest -q -p no:cacheprovider \
    -c /dev/null --rootdir="$work" --junitxml="$work/series.xml" "$PWD/$SERIES_TESTS"
step "which of them ran" "$work/venv/bin/python" -c "$COUNT_TESTS" "$work/series.xml" "$count"
step "casting forward inputs" "${tool[@]}" bench cast --torch "$work/stock" --device cuda
if [[ "$upstream" == yes ]]; then
    step "upstream's mixed precision tests" \
        "${tool[@]}" test "$BASE" "$UPSTREAM_TESTS" -k "$UPSTREAM_NAMES" --device cuda --one-device
else
    echo "==> left out: $upstream"
fi

if ((${#failed[@]})); then
    printf '==> FAILED: %s\n' "${failed[@]}"
    exit 1
fi
((count > 1)) || echo "==> one GPU: what needs two was left out, as listed above"
echo "==> all that ran passed, in $SECONDS s on $count GPU(s)"
