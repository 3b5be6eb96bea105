"""Flower as the engine: orders and replies are its messages. The only room that knows Flower (flwr 1.41).

records      orders and replies as records of a message, and back
grid         the engine: who is there, orders out, replies in, who is missing
site         the ClientApp: one site's own folder, one order at a time
own_affairs  what only the site decides: its files, its disk, its code
node         a site's process: asks the SuperLink for orders and runs the installed ClientApp only
coordinator  the ServerApp of a deployment: run config -> settings -> a run directory like any other
control      what the coordinator tells its SuperLink: names and keys of the sites, and that a run begins
simulation   the same on Ray, on one machine or a cluster
privacy      Flower's local differential privacy, for what a site sends
poc          a whole deployment on this machine

Without Flower:
config       a run's settings as flat keys of a Flower app
prepare      a user's words to a deployment, checked before anything starts
scaffold     what `unseen flower init`, `keys` and `key` write
site_file    site.toml: what a site's node is told
status       status.json, in words;  status_page  the same as a page on loopback
processes    processes with logs, none of which stays
"""
