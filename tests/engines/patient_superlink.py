"""`flower-superlink` that gives a ServerApp minutes to come up, for tests on a busy machine.

Flower hands a run's task back when its process has not reported within 30 s, and starts another one, and another; each
slows the others down, and none of them comes up in time (110 of them, once). No option and no variable changes the 30 s.
"""

from __future__ import annotations

from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.superlink.cli import flower_superlink

if __name__ == "__main__":
    for state in (in_memory_corestate, sql_corestate):
        assert hasattr(state, "HEARTBEAT_DEFAULT_INTERVAL")
        state.HEARTBEAT_DEFAULT_INTERVAL = 600  # seconds
    flower_superlink()
