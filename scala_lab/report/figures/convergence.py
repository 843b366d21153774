"""Figures of convergence: errors over steps on logarithmic scales, with the bounds claimed for them."""

from scala_lab.report.figures import style
from scala_lab.report.figures.style import DataFrame, Figure


@style.styled()
def rate_panels(
    frame: DataFrame, title: str, x_label: str, y_label: str, log_steps: bool = True, bound_label: str = "printed bound"
) -> Figure:
    """Draw measured values with their intervals, a panel for each group of lines, claimed bounds as thin lines.

    `frame` has one row per panel, label and number of steps: panel, label, steps, value, and optionally low, high and
    bound (nan for none). With `log_steps` a power law is a straight line, without it a linear rate is one.
    """
    style.require_columns(frame, "panel", "label", "steps", "value")
    panels = list(frame.groupby("panel", sort=False))
    from matplotlib.lines import Line2D

    figure = style.new_figure(1.2 + 3.3 * len(panels), 4.4)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, rows) in zip(all_axes, panels, strict=True):
        for index, (label, points) in enumerate(rows.groupby("label", sort=False)):
            line = points.sort_values("steps")
            look = style.line_style(index, markersize=5, markevery=1 if log_steps else max(1, len(line) // 8))
            style.line_with_band(axes, line["steps"], line, str(label), look)
            if "bound" in line and line["bound"].notna().any():
                axes.plot(line["steps"], line["bound"], color=look["color"], linewidth=0.9, linestyle=":")
        axes.set(title=panel, xlabel=x_label, yscale="log")
        if log_steps:
            axes.set_xscale("log", base=2)
        axes.grid(axis="y")
        handles, names = axes.get_legend_handles_labels()
        if "bound" in rows and rows["bound"].notna().any():
            handles.append(Line2D([], [], color="black", linewidth=0.9, linestyle=":"))
            names.append(bound_label)
        axes.legend(handles, names, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=1)
    all_axes[0].set_ylabel(y_label)
    figure.suptitle(title, fontsize=11)
    return figure
