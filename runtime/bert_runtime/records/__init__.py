"""Reading data files: texts, tagged sentences and questions with answers.

One reader serves training, evaluation, calibration and prediction, so a file means the same everywhere, and
every complaint names the file and the place in it.
"""

from bert_runtime.records.reader import FORMATS, iter_records, read_records
from bert_runtime.records.record import Record

__all__ = ["FORMATS", "Record", "iter_records", "read_records"]
