#!/usr/bin/env bash
# Three hospitals train together, on this machine; a fourth, which took no part, uses the model. See README.md.
#   bash examples/hospital/run.sh [FOLDER]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(realpath -m "${1:-hospital-demo}")

python "$here/make_images.py" "$folder/images" "${IMAGES:-40}"

# The coordinator, the proxy and a node per hospital, with keys and TLS; one run; and everything is stopped again.
run=$(unseen flower poc --root "$folder/images" --sites aachen,bergen,cadiz --method fedbn --protocol digits \
    --image-size 32 --rounds "${ROUNDS:-6}" --batch-size 8 --minimum-clients 3 --timeout 300 --out "$folder/poc")

# The fourth hospital gets the model, and classifies its own images.
unseen show "$run"
unseen predict "$run" "$folder/images/delft" --out "$folder/delft.csv"
python - "$folder/delft.csv" <<'PYTHON'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
right = sum(f"{row['class']}/" in row["image"] for row in rows)
print(f"delft, which took no part: {right} of {len(rows)} patches classified rightly")
PYTHON
