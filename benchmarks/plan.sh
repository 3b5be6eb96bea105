#!/usr/bin/env bash
# The plan of docs/runs.md, from the top, one run at a time; goes on where it was stopped.
#
#   nice -n 10 benchmarks/plan.sh OUT [STEP...]      # steps by number; all by default
#   SEEDS=1-2 benchmarks/plan.sh OUT 1               # the seeds of step 1 that have no records yet
#
# PACS and the ImageNet weights are looked for beside the repository; steps that need them are left out without them.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?give a folder for the runs}
shift || true
unseen=${UNSEEN:-$here/.venv/bin/unseen}
shared=${UNSEEN_SHARED:-$here/../shared}
pacs=(--protocol pacs --root "$shared/data/PACS" --weights "$shared/weights/mobilenetv2_100.imagenet.safetensors")
six=fedavg,fedfd-a,gperxan,stablefdg,fedfd,fedadg

step() {
    case $1 in
    1) "$unseen" bench --data digits --methods $six --seeds "${SEEDS:-0-2}" --workers 1 --out "$out/digits" ;;
    2) [[ -d $shared/data/PACS ]] && "$unseen" bench "${pacs[@]}" --methods $six --seeds 0 --workers 1 --out "$out/pacs" ;;
    3) "$unseen" bench --data digits --methods all --seeds 0-1 --workers 1 --out "$out/digits" ;;
    4) "$unseen" tune --data digits --methods $six,fedprox,moon,rsc,csac,sfa,jigen --workers 1 --out "$out/tuned" ;;
    5) [[ -d $shared/data/PACS ]] && "$unseen" bench "${pacs[@]}" --methods $six --seeds 1-2 --workers 1 --out "$out/pacs" ;;
    6) "$unseen" bench --data digits --methods $six --seeds 3-4 --workers 1 --out "$out/digits" ;;
    *) echo "step $1 is not automatic yet: docs/runs.md says what it is" ;;
    esac
}

for number in "${@:-1 2 3 4 5 6}"; do
    for one in $number; do
        echo "== step $one, $(date +%H:%M)"
        step "$one"
    done
done
