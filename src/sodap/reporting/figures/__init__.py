"""Figures of a run, drawn with Matplotlib, and their conversion to SVG and PNG."""
