#!/usr/bin/env bash
# Three hospitals train together, on this machine; a fourth, which took no part, uses the model. See README.md.
#   bash examples/hospital/run.sh [FOLDER]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(realpath -m "${1:-hospital-demo}")
link=${LINK_PORT:-8000} public=${PUBLIC_PORT:-8443} node=${NODE_PORT:-9094}
sites=(aachen bergen cadiz)
mkdir -p "$folder"

# Whatever happens, nothing that was started here stays: the nodes go first, the SuperLink last.
started=()
stop() {
    for pid in $(printf '%s\n' "${started[@]}" | tac); do kill -9 -- "-$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
}
trap stop EXIT
start() { # NAME COMMAND...: in the background, in a process group of its own, with its own log
    local name=$1; shift
    setsid "$@" >"$folder/$name.log" 2>&1 &
    started+=($!)
}

python "$here/make_images.py" "$folder/images" "${IMAGES:-40}"

# The coordinator writes the app and the keys.
unseen flower init "$folder/app" --method fedbn --sites "$(IFS=,; echo "${sites[*]}")" --target delft --protocol digits \
    --image-size 32 --rounds "${ROUNDS:-6}" --batch-size 8 --minimum-clients 3 --timeout 300 \
    --port "$public" --link-port "$link"
unseen flower keys "$folder/app"
. "$folder/app/environment.sh"

# The coordinator's SuperLink, on loopback; nginx publishes the sites' path of it, and nothing else.
keys=$folder/app/keys
start superlink flower-superlink --host 127.0.0.1 --port "$link" --database "$FLWR_HOME/state.db" --enable-supernode-auth \
    --ssl-ca-certfile "$keys/ca.crt" --ssl-certfile "$keys/server.crt" --ssl-keyfile "$keys/server.key"
if command -v nginx >/dev/null; then
    mkdir -p "$folder/app/nginx_temp"
    start nginx nginx -c "$folder/app/nginx.conf" -p "$folder/app" -g 'daemon off; master_process off;'
else
    echo "nginx is not installed: the sites reach the SuperLink directly, which a real deployment must not allow"
    public=$link
fi
until python -c "import socket; socket.create_connection(('127.0.0.1', $link), 1)" 2>/dev/null; do sleep 0.5; done
for site in "${sites[@]}"; do flwr supernode register "$keys/$site.pub" coordinator; done

# Each hospital: a SuperNode, and beside it the process that runs the installed unseen.
for site in "${sites[@]}"; do
    start "node-$site" flower-supernode --superlink "localhost:$public" --root-certificates "$keys/ca.crt" \
        --auth-supernode-private-key "$keys/$site" --host 127.0.0.1 --port "$node" --isolation process \
        --node-config "site=\"$site\" folder=\"$folder/images/$site\" keep=\"$folder/keep-$site\""
    start "worker-$site" unseen flower node --supernode "127.0.0.1:$node"
    node=$((node + 1))
done

# The coordinator starts the run, and waits for its result.
flwr run "$folder/app" coordinator
end=$((SECONDS + ${PATIENCE:-600}))
until compgen -G "$folder/app/runs/*/result.json" >/dev/null; do
    if ((SECONDS > end)); then echo "no result; see $folder/*.log" >&2; exit 1; fi
    sleep 1
done
run=$(dirname "$folder"/app/runs/*/result.json)
cat "$run/log.txt"

# The fourth hospital gets the model, and classifies its own images.
unseen show "$run"
unseen predict "$run" "$folder/images/delft" --out "$folder/delft.csv"
python - "$folder/delft.csv" <<'PYTHON'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
right = sum(f"{row['class']}/" in row["image"] for row in rows)
print(f"delft, which took no part: {right} of {len(rows)} patches classified rightly")
PYTHON
