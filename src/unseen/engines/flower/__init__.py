"""Flower as the engine: orders and replies are its messages. The only room that knows Flower (flwr 1.41).

records      orders and replies as records of a message, and back
grid         the engine: who is there, orders out, replies in, who is missing
site         the ClientApp: one site's own folder, one order at a time
node         a process that stays beside a SuperNode and runs the installed ClientApp only
coordinator  the ServerApp of a deployment: run config -> settings -> a run directory like any other
simulation   the same on Ray, on one machine or a cluster
privacy      Flower's local differential privacy, for what a site sends
config       a run's settings as flat keys of a Flower app, without Flower
scaffold     what `unseen flower init` and `unseen flower keys` write, without Flower
"""
