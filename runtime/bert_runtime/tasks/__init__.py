"""Tasks: their settings, result types and metrics, and the registry that trainer, exporter and runtime share."""

from bert_runtime.tasks.answer_results import Answer, Answers
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.entities import Entities, Entity
from bert_runtime.tasks.feature_extraction import FeatureExtraction, TokenVectors
from bert_runtime.tasks.fill_mask import Filling, Fillings, FillMask
from bert_runtime.tasks.label_results import Classification, MultiLabelClassification, Regression
from bert_runtime.tasks.next_sentence_prediction import NextSentence, NextSentencePrediction
from bert_runtime.tasks.question_answering import QuestionAnswering
from bert_runtime.tasks.registry import TASKS, task_from_dict
from bert_runtime.tasks.replaced_token_detection import ReplacedTokenDetection, ReplacedTokens
from bert_runtime.tasks.reranking import Relevance, Reranking
from bert_runtime.tasks.sentence_embedding import SentenceEmbedding
from bert_runtime.tasks.sparse_embedding import SparseEmbedding
from bert_runtime.tasks.text_classification import TextClassification
from bert_runtime.tasks.token_classification import TokenClassification
from bert_runtime.tasks.values import (
    Example,
    Outputs,
    Result,
    TextInput,
    WindowedText,
    max_abs_difference,
    stack_single_window,
)
from bert_runtime.tasks.vector_results import Embedding, SparseVector
from bert_runtime.tasks.vocabulary import Vocabulary

__all__ = [
    "TASKS",
    "Answer",
    "Answers",
    "Classification",
    "Embedding",
    "Entities",
    "Entity",
    "Example",
    "FeatureExtraction",
    "FillMask",
    "Filling",
    "Fillings",
    "MultiLabelClassification",
    "NextSentence",
    "NextSentencePrediction",
    "Outputs",
    "QuestionAnswering",
    "Regression",
    "Relevance",
    "ReplacedTokenDetection",
    "ReplacedTokens",
    "Reranking",
    "Result",
    "SentenceEmbedding",
    "SparseEmbedding",
    "SparseVector",
    "Task",
    "TextClassification",
    "TextInput",
    "TokenClassification",
    "TokenVectors",
    "Vocabulary",
    "WindowedText",
    "max_abs_difference",
    "stack_single_window",
    "task_from_dict",
]
