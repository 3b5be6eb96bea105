"""Results that show themselves: a few lines in a prompt, a table in a notebook, a pandas frame, a matplotlib figure."""

from __future__ import annotations

import html
import importlib.util
import math
from typing import Any

from unseen.core.errors import UserError

LINES = 5  # of a repr
ROWS = 20  # of a notebook's table
Row = dict[str, Any]


class Shown:
    """What a result must say: `lines` for people, `rows` for programs, and `draw` on matplotlib's axes."""

    def lines(self) -> list[str]:
        """The first says what this is."""
        raise NotImplementedError

    def rows(self) -> list[Row]:
        """One flat dictionary per row of the frame."""
        raise NotImplementedError

    def draw(self, axes: Any) -> None:
        """The usual picture of it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        said = self.lines()
        return "\n".join(
            said if len(said) <= LINES else [*said[: LINES - 1], f"... {len(said) - LINES + 1} more lines"]
        )

    def _repr_html_(self) -> str:
        rows = self.rows()
        said = "<br>".join(html.escape(line) for line in self.lines()[:LINES])
        if not rows:
            return f"<p>{said}</p>"
        names = list(rows[0])
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(_word(row[name]))}</td>' for name in names)}</tr>" for row in rows[:ROWS]
        )
        more = f"<p>{len(rows) - ROWS} more rows; .frame() has them all</p>" if len(rows) > ROWS else ""
        return f"<p>{said}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def frame(self) -> Any:
        """All rows as a pandas DataFrame."""
        if importlib.util.find_spec("pandas") is None:
            raise UserError(
                "A frame needs pandas: `pip install pandas`; .rows() gives the same as a list of dictionaries."
            )
        import pandas

        return pandas.DataFrame(self.rows())

    def plot(self, axes: Any = None) -> Any:
        """Draw it with matplotlib, on `axes` or on new ones, which are returned."""
        if axes is None:
            import matplotlib.pyplot as plt

            axes = plt.subplots(figsize=(6, 4))[1]
        self.draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        return axes


def _word(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
