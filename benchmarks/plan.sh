#!/usr/bin/env bash
# The plan of docs/runs.md, from the top, one run at a time; goes on where it was stopped.
#
#   nice -n 10 benchmarks/plan.sh OUT [STEP...]      # steps by number; all by default
#   SEEDS=1-2 benchmarks/plan.sh OUT 1               # only these seeds (steps 1, 3, 5, 7, 10, 11, 12)
#
# What has a record in benchmarks/results is not run again, so the plan goes on from one machine to the next.
# PACS and the ImageNet weights are looked for beside the repository; steps that need them are left out without them.
# Step 12 makes its own weights first, in some ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?give a folder for the runs}
shift || true
unseen=${UNSEEN:-$here/.venv/bin/unseen}
shared=${UNSEEN_SHARED:-$(realpath -m "$here/../shared")}
# What is known is looked for where the step's table reads it: a run of another step's folder would not be shown there.
known() { mkdir -p "$here/benchmarks/results/$1" && printf '%s' "$here/benchmarks/results/$1"; }
digits=(--data digits --known "$(known digits)")
photos=(--protocol pacs --root "$shared/data/PACS" --weights "$shared/weights/mobilenetv2_100.imagenet.safetensors")
pacs=("${photos[@]}" --known "$(known pacs)")
have_pacs() { [[ -d $shared/data/PACS ]] || { echo "no $shared/data/PACS: left out"; false; }; }
six=fedavg,fedfd-a,gperxan,stablefdg,fedfd,fedadg
six_pacs=${six/gperxan/gperxan:variant=gentle} # which the sources' validation images prefer on a pretrained net
more=gperxan,gperxan:variant=paper,fedadg:variant=paper,ga,elcfs,randconv,mixstyle
# All that fit the ConvNet, the best known first; without those that are FedAvg with one domain per client and equal budgets,
# and without what is against liars and leaks.
others="l2d moon fedprox rsc jigen sfa fedsr ga mixstyle csac selfreg randaug dsu elcfs ccst randconv copa fedsam scaffold ibn
    bin dson guide fedbn adapter fpl fediir fedgma fedomg mcgdm fisc fedccrl mcsad styleddg efdmix fedlgf swad fish fishr irm
    vrex mixup fedproto afl groupdro qfedavg fedavgm fedadam fedyogi fedadagrad fedspeed adcol"
best=fedavg,fedfd-a,gperxan           # FedAvg and the two that lead on digits; on PACS StableFDG leads
hardest="--targets street,outline"
tuned=fedprox,moon,rsc,csac,sfa,jigen # classics that are at FedAvg's height or behind it by default
towers=fedavg,doprompt,promptfl,fedins,feddgmoe,fedclip # what needs the tokens of a ViT, beside FedAvg on the same
paper=$here/benchmarks/paper

step() {
    case $1 in
    1) "$unseen" bench "${digits[@]}" --methods $six --seeds "${SEEDS:-0-2}" --workers 1 --out "$out/digits" ;;
    2) if have_pacs; then "$unseen" bench "${pacs[@]}" --methods $six_pacs --seeds 0 --workers 1 --out "$out/pacs"; fi ;;
    3) for method in $others; do # one after the other, so that rows are whole at any moment
            "$unseen" bench "${digits[@]}" --methods "$method" --seeds "${SEEDS:-0}" --workers 1 --out "$out/digits"
        done ;;
    4) "$unseen" tune --data digits --methods $six,$tuned $hardest --workers 1 --out "$out/tuned/search"
        "$unseen" bench "${digits[@]}" --methods $six,$tuned $hardest --tuned "$out/tuned/search/choices.json" --seeds "${SEEDS:-0}" \
            --workers 1 --out "$out/tuned/digits" ;;
    5) if have_pacs; then "$unseen" bench "${pacs[@]}" --methods $six_pacs --seeds "${SEEDS:-1-2}" --workers 1 --out "$out/pacs"; fi ;;
    6) "$unseen" bench "${digits[@]}" --methods $six --seeds 3-4 --workers 1 --out "$out/digits" ;;
    7) "$unseen" bench --known "$(known digits)" --file "$paper/small-variants.toml" --seeds "${SEEDS:-0-1}" --workers 1 --out "$out/digits" ;;
    8) if have_pacs; then
        "$unseen" bench "${pacs[@]}" --methods "$more" --seeds 0 --workers 1 --out "$out/pacs"
        network="encoder=$shared/weights/adain_encoder.safetensors --set decoder=$shared/weights/adain_decoder.safetensors"
        for bank in overall single; do # CCST as published, but for the size at which it restyles
            "$unseen" bench "${pacs[@]}" --methods ccst --set bank=$bank --set side=144 --set $network --targets sketch \
                --seeds 0 --workers 1 --out "$out/pacs"
        done
    fi ;;
    9) "$unseen" bench --data digits --known "$(known long/digits)" --methods $best --targets street --seeds 0 --rounds 150 \
            --workers 1 --out "$out/long/digits"
        if have_pacs; then
            "$unseen" bench "${photos[@]}" --known "$(known long/pacs)" --methods ${best/gperxan/stablefdg} --targets sketch \
                --seeds 0 --rounds 30 --workers 1 --out "$out/long/pacs"
        fi ;;
    10) "$unseen" bench --known "$here/benchmarks/results" --file "$paper/small-ablations.toml" $hardest --seeds "${SEEDS:-0-2}" \
        --workers 1 --out "$out/ablations" ;; # the table has the runs of the main one, too
    11) for table in fedfd-table10 stablefdg-table2; do
            "$unseen" bench --known "$(known "many/$table")" --file "$paper/small-$table.toml" $hardest --seeds "${SEEDS:-0-1}" --workers 1 --out "$out/many/$table"
        done ;;
    12) letters=$out/letters.safetensors # made here; another CPU's has other last bits, and its runs count as others
        python=$(dirname "$(command -v "$unseen")")/python
        [[ -f $letters ]] || { mkdir -p "$out" && "$python" "$here/benchmarks/letters.py" "$letters"; }
        "$unseen" bench --protocol digits-vit --weights "$letters" --known "$(known towers)" --methods $towers $hardest \
            --seeds "${SEEDS:-0}" --workers 1 --out "$out/towers" ;;
    *) echo "there is no step $1: docs/runs.md lists them" ;;
    esac
}

for number in "${@:-1 2 3 4 5 6 7 8 9 10 11 12}"; do
    for one in $number; do
        echo "== step $one, $(date +%H:%M)"
        step "$one"
    done
done
