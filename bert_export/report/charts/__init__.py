"""Charts as inline SVG, drawn with the standard library: a few kilobytes each, and in the page's colours.

matplotlib's SVG would be tens of kilobytes each, with letters as paths and colours that dark mode cannot change.
"""

from bert_export.report.charts.heatmap import heatmap
from bert_export.report.charts.latency import latency_chart
from bert_export.report.charts.reliability import reliability_diagram
from bert_export.report.charts.scatter import scatter_plot
from bert_export.report.charts.svg import Svg, series_class

__all__ = ["Svg", "heatmap", "latency_chart", "reliability_diagram", "scatter_plot", "series_class"]
