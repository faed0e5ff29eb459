#!/usr/bin/env bash
# Runs all that needs a GPU, one step after another, and leaves what was found in a folder.
#
#   gpu.sh [OUT [STEP...]]
#
#   OUT   gets eight files: run.jsonl (what was packed, and how each step ended), log.txt (what all of them said), and
#         a STEP.json of each step; gpu-results when not given. It must have none of them yet
#   STEP  suite, ceilings, rows, attention, encoder, sanitizer; all of them, in this order, when none is given
#
# A step that fails, or takes longer than it may, does not keep the others from running; the exit code tells whether all
# went well: 2 when nothing was run, since a STEP or the OUT is not what it should be. GPU_SECONDS is what all of it may
# take: 1100 when not given, as much as the steps may take by themselves. Ctrl-C and SIGTERM end the step that runs, and
# all of it.
#
# It lies beside what `cargo xtask gpu pack` made, and needs an NVIDIA driver, NVRTC and cuBLASLt (where the loader finds
# them, or in Python's environment), and a Python with torch and transformers: python3, or what TURBO_PEERS_PYTHON names.
# Without these two turbo is timed alone.
set -uo pipefail
export LC_ALL=C PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-gpu-results}
[ $# -eq 0 ] || shift
steps='suite ceilings rows attention encoder sanitizer'
wanted=" ${*:-$steps} "
seconds=${GPU_SECONDS:-1100}

for name in "$@"; do
  case " $steps " in
    *" $name "*) ;;
    *)
      printf '%s: no such step; expected some of %s\n' "$name" "$steps" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
# shellcheck disable=SC2086 # one argument for each
for file in run.jsonl log.txt $(printf '%s.json ' $steps); do
  if [ -e "$out/$file" ]; then
    printf '%s is there already: give another OUT, or remove what an earlier run found\n' "$out/$file" >&2
    exit 2
  fi
done
log=$out/log.txt
cp "$here/manifest.json" "$out/run.jsonl" || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
all_went_well=true

# `timeout` has a process group of its own, which a terminal does not interrupt
running=
stop() { # CODE
  trap '' INT TERM
  if [ -n "$running" ]; then
    kill -TERM "$running" 2>/dev/null
    wait "$running"
  fi
  printf 'interrupted; what was found before is in %s\n' "$out" >&2
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

# what it last said, as a string of JSON
last_words() {
  grep -v '^[[:space:]]*$' "$log" | tail -n 1 | tr -cd '[:print:]' | cut -c 1-300 | sed 's/["\\]/\\&/g'
}

step() { # NAME SECONDS ARGUMENT... : `turbo-bench gpu NAME ARGUMENT...`, in so many seconds at most
  local name=$1 bound=$2 left=$((seconds - SECONDS)) begun=$SECONDS code
  shift 2
  case $wanted in *" $name "*) ;; *) return ;; esac
  [ "$bound" -le "$left" ] || bound=$left
  printf '\n==> %s\n' "$name" >>"$log"
  if [ "$bound" -gt 0 ]; then
    timeout --kill-after=5 "$bound" "$here/turbo-bench" gpu "$name" --out "$out" "$@" >>"$log" 2>&1 </dev/null &
    running=$!
    wait "$running"
    code=$?
    running=
    [ "$code" -ne 124 ] || printf 'not done after %s s\n' "$bound" >>"$log"
  else
    code=124
    printf 'no time was left\n' >>"$log"
  fi
  local took=$((SECONDS - begun))
  printf '{"step":"%s","rc":%d,"seconds":%d,"says":"%s"}\n' "$name" "$code" "$took" "$(last_words)" >>"$out/run.jsonl"
  if [ "$code" -eq 0 ]; then
    printf '%5d s  ok      %s\n' "$took" "$name"
  else
    all_went_well=false
    printf '%5d s  FAILED  %s (exit code %d): %s\n' "$took" "$name" "$code" "$(last_words)"
  fi
}

{
  date -u
  uname -a
  nvidia-smi
} >"$log" 2>&1

python=$(command -v "${TURBO_PEERS_PYTHON:-python3}")
unset TURBO_PEERS_PYTHON
if [ -n "$python" ] && "$python" -c 'import torch, transformers' >>"$log" 2>&1; then
  export TURBO_PEERS_PYTHON=$python
  # turbo looks there for NVIDIA's libraries
  export VIRTUAL_ENV=${VIRTUAL_ENV:-$("$python" -c 'import sys; print(sys.prefix)')}
else
  printf 'no Python with torch and transformers: turbo is timed alone\n'
fi

timed=(--peers "$here/peers")
step suite 180 --models "$here/models"
step ceilings 30 "${timed[@]}"
step rows 200 "${timed[@]}"
step attention 60 "${timed[@]}"
step encoder 320 "${timed[@]}" --model "$scratch/bert-base"
step sanitizer 310

printf '%5d s  in all; what was found is in %s\n' "$SECONDS" "$out"
$all_went_well
