"""Decisions of a variant on a labelled file: one judge per task, with one form of result."""

from bert_export.report.judgements.base import HITS_AND_MISSES, Decision, Judgement, Numbers, Table
from bert_export.report.judgements.registry import JUDGES, judge

__all__ = ["HITS_AND_MISSES", "JUDGES", "Decision", "Judgement", "Numbers", "Table", "judge"]
