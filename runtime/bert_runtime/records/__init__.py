"""Reading of data files: texts, tagged sentences, and questions with answers.

Training, evaluation, calibration and prediction share one reader. Its errors name the file and the line.
"""

from bert_runtime.records.reader import FORMATS, iter_records, iter_rows, read_records
from bert_runtime.records.record import Record

__all__ = ["FORMATS", "Record", "iter_records", "iter_rows", "read_records"]
