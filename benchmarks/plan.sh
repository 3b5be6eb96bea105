#!/usr/bin/env bash
# The plan of docs/runs.md, from the top, one run at a time; goes on where it was stopped.
#
#   nice -n 10 benchmarks/plan.sh OUT [STEP...]      # steps by number; all by default
#   SEEDS=1-2 benchmarks/plan.sh OUT 1               # only these seeds (steps 1, 3, 5, 7, 10, 11)
#
# What has a record in benchmarks/results is not run again, so the plan goes on from one machine to the next.
# PACS and the ImageNet weights are looked for beside the repository; steps that need them are left out without them.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?give a folder for the runs}
shift || true
unseen=${UNSEEN:-$here/.venv/bin/unseen}
shared=${UNSEEN_SHARED:-$(realpath -m "$here/../shared")}
known=(--known "$here/benchmarks/results")
digits=(--data digits "${known[@]}")
pacs=("${known[@]}" --protocol pacs --root "$shared/data/PACS" --weights "$shared/weights/mobilenetv2_100.imagenet.safetensors")
six=fedavg,fedfd-a,gperxan,stablefdg,fedfd,fedadg
six_pacs=${six/gperxan/gperxan:variant=gentle} # which the sources' validation images prefer on a pretrained net
more=gperxan,gperxan:variant=paper,fedadg:variant=paper,silobn,ga,elcfs,randconv,mixstyle
# All that fit the ConvNet, the best known first; without those that are FedAvg with one domain per client and equal budgets,
# and without what is against liars and leaks.
others="l2d moon fedprox rsc jigen sfa fedsr ga mixstyle csac selfreg randaug dsu elcfs ccst randconv copa fedsam scaffold ibn
    bin dson guide fedbn adapter fpl fediir fedgma fedomg mcgdm fisc fedccrl mcsad styleddg efdmix fedlgf swad fish fishr irm
    vrex mixup fedproto afl groupdro qfedavg fedavgm fedadam fedyogi fedadagrad fedspeed"
best=fedavg,fedfd-a,gperxan           # FedAvg and the two that lead on digits; on PACS StableFDG leads
hardest="--targets street,outline"
tuned=fedprox,moon,rsc,csac,sfa,jigen # classics that are at FedAvg's height or behind it by default
paper=$here/benchmarks/paper

step() {
    case $1 in
    1) "$unseen" bench "${digits[@]}" --methods $six --seeds "${SEEDS:-0-2}" --workers 1 --out "$out/digits" ;;
    2) [[ -d $shared/data/PACS ]] && "$unseen" bench "${pacs[@]}" --methods $six_pacs --seeds 0 --workers 1 --out "$out/pacs" ;;
    3) for method in $others; do # one after the other, so that rows are whole at any moment
            "$unseen" bench "${digits[@]}" --methods "$method" --seeds "${SEEDS:-0}" --workers 1 --out "$out/digits"
        done ;;
    4) "$unseen" tune --data digits --methods $six,$tuned $hardest --workers 1 --out "$out/tuned/search"
        "$unseen" bench "${digits[@]}" --methods $six,$tuned $hardest --tuned "$out/tuned/search/choices.json" --seeds "${SEEDS:-0}" \
            --workers 1 --out "$out/tuned/digits" ;;
    5) [[ -d $shared/data/PACS ]] && "$unseen" bench "${pacs[@]}" --methods $six_pacs --seeds "${SEEDS:-1-2}" --workers 1 --out "$out/pacs" ;;
    6) "$unseen" bench "${digits[@]}" --methods $six --seeds 3-4 --workers 1 --out "$out/digits" ;;
    7) "$unseen" bench "${known[@]}" --file "$paper/small-variants.toml" --seeds "${SEEDS:-0-1}" --workers 1 --out "$out/digits" ;;
    8) [[ -d $shared/data/PACS ]] && {
        "$unseen" bench "${pacs[@]}" --methods "$more" --seeds 0 --workers 1 --out "$out/pacs"
        network="encoder=$shared/weights/adain_encoder.safetensors --set decoder=$shared/weights/adain_decoder.safetensors"
        for bank in overall single; do # CCST as published, but for the size at which it restyles
            "$unseen" bench "${pacs[@]}" --methods ccst --set bank=$bank --set side=144 --set $network --targets sketch \
                --seeds 0 --workers 1 --out "$out/pacs"
        done
    } ;;
    9) "$unseen" bench "${digits[@]}" --methods $best --targets street --seeds 0 --rounds 150 --workers 1 --out "$out/long/digits"
        [[ -d $shared/data/PACS ]] &&
            "$unseen" bench "${pacs[@]}" --methods ${best/gperxan/stablefdg} --targets sketch --seeds 0 --rounds 30 --workers 1 --out "$out/long/pacs" ;;
    10) "$unseen" bench "${known[@]}" --file "$paper/small-ablations.toml" $hardest --seeds "${SEEDS:-0-2}" \
        --workers 1 --out "$out/ablations" ;;
    11) for table in fedfd-table10 stablefdg-table2; do
            "$unseen" bench "${known[@]}" --file "$paper/small-$table.toml" $hardest --seeds "${SEEDS:-0-1}" --workers 1 --out "$out/many/$table"
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
