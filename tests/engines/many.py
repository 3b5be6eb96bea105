"""A ServerApp for the tests: the runs of several methods one after the other, as the installed one does a single run.

The start of a ServerApp costs more than a run of the small net; `method` in the run config is a list with commas.
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unseen.engines.flower import coordinator

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    for method in str(context.run_config["method"]).split(","):
        context.run_config["method"] = method
        coordinator.app(grid, context)
