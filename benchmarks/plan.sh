#!/usr/bin/env bash
# The plan of docs/runs.md, from the top, one run at a time; goes on where it was stopped.
#
#   nice -n 10 benchmarks/plan.sh OUT [STEP...]      # steps by number; all by default
#   SEEDS=1-2 benchmarks/plan.sh OUT 1               # of steps 1, 5 and 7: only seeds that have no records yet
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
six_pacs=${six/gperxan/gperxan:variant=gentle} # which the sources' validation images prefer on a pretrained net
more=gperxan,gperxan:variant=paper,fedadg:variant=paper,silobn,ga,elcfs,randconv,mixstyle
best=fedavg,fedfd-a,gperxan           # FedAvg and the two that lead on digits; on PACS StableFDG leads
hardest="--targets street,outline"
paper=$here/benchmarks/paper

step() {
    case $1 in
    1) "$unseen" bench --data digits --methods $six --seeds "${SEEDS:-0-2}" --workers 1 --out "$out/digits" ;;
    2) [[ -d $shared/data/PACS ]] && "$unseen" bench "${pacs[@]}" --methods $six_pacs --seeds 0 --workers 1 --out "$out/pacs" ;;
    3) "$unseen" bench --data digits --methods all --seeds 0-1 --workers 1 --out "$out/digits" ;;
    4) "$unseen" tune --data digits --methods $six,fedprox,moon,rsc,csac,sfa,jigen --workers 1 --out "$out/tuned" ;;
    5) [[ -d $shared/data/PACS ]] && "$unseen" bench "${pacs[@]}" --methods $six_pacs --seeds "${SEEDS:-1-2}" --workers 1 --out "$out/pacs" ;;
    6) "$unseen" bench --data digits --methods $six --seeds 3-4 --workers 1 --out "$out/digits" ;;
    7) "$unseen" bench --file "$paper/small-variants.toml" --seeds "${SEEDS:-0-1}" --workers 1 --out "$out/digits" ;;
    8) [[ -d $shared/data/PACS ]] && {
        "$unseen" bench "${pacs[@]}" --methods "$more" --seeds 0 --workers 1 --out "$out/pacs"
        network="encoder=$shared/weights/adain_encoder.safetensors --set decoder=$shared/weights/adain_decoder.safetensors"
        for bank in overall single; do # CCST as published, but for the size at which it restyles
            "$unseen" bench "${pacs[@]}" --methods ccst --set bank=$bank --set side=0 --set $network --targets sketch \
                --seeds 0 --workers 1 --out "$out/pacs"
        done
    } ;;
    9) "$unseen" bench --data digits --methods $best --targets street --seeds 0 --rounds 150 --workers 1 --out "$out/long/digits"
        [[ -d $shared/data/PACS ]] &&
            "$unseen" bench "${pacs[@]}" --methods ${best/gperxan/stablefdg} --targets sketch --seeds 0 --rounds 30 --workers 1 --out "$out/long/pacs" ;;
    10) mkdir -p "$out/ablations" # what the flagship table has trained already is not trained again
        for own in "$out"/digits/digits-{street,outline}-*; do [[ -e $own ]] && cp -rn "$own" "$out/ablations/"; done
        "$unseen" bench --file "$paper/small-ablations.toml" $hardest --seeds 0-2 --workers 1 --out "$out/ablations" ;;
    11) for table in fedfd-table10 stablefdg-table2; do
            "$unseen" bench --file "$paper/small-$table.toml" $hardest --seeds 0-1 --workers 1 --out "$out/many/$table"
        done ;;
    *) echo "there is no step $1: docs/runs.md lists them" ;;
    esac
}

for number in "${@:-1 2 3 4 5 6 7 8 9 10 11}"; do
    for one in $number; do
        echo "== step $one, $(date +%H:%M)"
        step "$one"
    done
done
