"""Cascades of two bundles: calibrate, choose a threshold under a gate, judge it by cross-validation, and write."""

from bert_export.cascade.build import CascadeResult, build_cascade

__all__ = ["CascadeResult", "build_cascade"]
