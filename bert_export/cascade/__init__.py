"""Cascades of two bundles: calibrate, choose a threshold under a gate, judge it on other rows, and write."""

from bert_export.cascade.build import CascadeResult, build_cascade

__all__ = ["CascadeResult", "build_cascade"]
