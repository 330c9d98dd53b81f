"""Options of training runs: settings of fine-tuning and pre-training, and the processes of a run."""

from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.config_file import config_option
from bert_export.cli.help import Decorator, option_group
from bert_export.cli.options import combine, force_option, json_option
from bert_export.cli.param_types import PATH, DevicesType

if TYPE_CHECKING:
    from bert_models.training import Placement

__all__ = ["checkpoint_output_option", "fine_tuning_options", "pop_placement", "pretraining_options", "run_options"]

_training_option = option_group("Training")
_processes_option = option_group("Processes")
_run_option = option_group("Run")

checkpoint_output_option = option_group("Output")(
    "--output", type=PATH, required=True, help="Folder of the checkpoint to write."
)


def _setting(flag: str, name: str | None = None, **attributes: Any) -> Decorator:
    """Return an option that becomes the setting `name`, by default of the flag's name, and shows its default."""
    return _training_option(flag, *([] if name is None else [name]), **({"show_default": True} | attributes))


_batch_size = _setting("--batch-size", type=int, default=32, help="Sequences per batch and process.")
_accumulate = _setting(
    "--accumulate",
    "gradient_accumulation_steps",
    type=int,
    default=1,
    help="Batches per optimizer step: gradients as of one larger batch, in the memory of a small one.",
)
_warmup_ratio = _setting(
    "--warmup-ratio", type=float, default=0.1, help="Fraction of the steps in which the learning rate rises from 0."
)
_weight_decay = _setting("--weight-decay", type=float, default=0.01, help="Weight decay of AdamW.")
_seed = _setting("--seed", type=int, default=0, help="Seed of new weights, batch order, dropout and masks.")
_precision = _setting(
    "--precision",
    type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
    default="auto",
    help="Arithmetic. auto: bf16 mixed precision if this machine supports it and it measures faster, else fp32; fp16 "
    "needs CUDA.",
)


def _lr(default: float) -> Decorator:
    return _setting("--lr", type=float, default=default, help="Peak learning rate.")


fine_tuning_options = combine(
    _setting("--epochs", type=int, default=3, help="Passes over the training file."),
    _batch_size,
    _accumulate,
    _lr(1e-4),
    _setting(
        "--layer-lr-decay",
        type=float,
        default=1.0,
        help="Factor on the learning rate per layer below the head, e.g. 0.9; 1 is off.",
    ),
    _warmup_ratio,
    _weight_decay,
    _setting("--max-grad-norm", type=float, default=1.0, help="Maximum norm that gradients are clipped to."),
    _setting(
        "--max-tokens", type=int, show_default="the checkpoint's maximum", help="Maximum tokens of a training sequence."
    ),
    _setting(
        "--patience",
        type=int,
        show_default="no early stopping",
        help="Epochs without a better dev metric after which training stops.",
    ),
    _setting(
        "--metric",
        show_default="the task's, or macro_f1 with --class-weights balanced",
        help="Dev metric that selects the best epoch, such as macro_f1; an unknown one is refused with a list.",
    ),
    _setting(
        "--label-smoothing",
        type=float,
        default=0.0,
        help="Fraction of each target's probability that is spread over all labels.",
    ),
    _setting(
        "--class-weights",
        type=click.Choice(["balanced"]),
        help="Weight classes in the loss by the inverse of their frequency.",
    ),
    _setting("--query-flops", type=float, default=5e-5, help="sparse-embedding: weight of the sparsity of queries."),
    _setting(
        "--document-flops",
        type=float,
        default=3e-5,
        help="sparse-embedding: weight of the sparsity of the texts that are found.",
    ),
    _setting(
        "--dev-share",
        "dev_fraction",
        type=float,
        show_default="0.1, at most 2,000 rows",
        help="Fraction of the training rows that is held out for evaluation if there is no --dev.",
    ),
    _setting(
        "--unknown-labels",
        type=click.Choice(["skip", "keep", "error"]),
        default="skip",
        help="Labels that only dev rows have. skip: warn, and do not score these rows; keep: score them, as labels "
        "that the model never learns; error: do not train.",
    ),
    _setting(
        "--sort-by-length/--no-sort-by-length",
        help="Group texts of similar length into batches: less padding.",
    ),
    _setting(
        "--dropout",
        type=float,
        show_default="the checkpoint's",
        help="Dropout probability while training, e.g. 0 where a student has much to learn from.",
    ),
    _setting(
        "--freeze-embeddings/--no-freeze-embeddings",
        help="Do not train the token embeddings: less time and memory per step.",
    ),
    _setting(
        "--gradient-checkpointing/--no-gradient-checkpointing",
        help="Recompute activations in the backward pass: less memory, slower.",
    ),
    _seed,
    _precision,
)
"""Options that are the fields of `TrainSettings`."""

pretraining_options = combine(
    _setting("--steps", type=int, default=10_000, help="Optimizer steps."),
    _batch_size,
    _accumulate,
    _lr(5e-4),
    _warmup_ratio,
    _weight_decay,
    _setting("--max-tokens", type=int, default=128, help="Maximum tokens of a training sequence."),
    _setting(
        "--mask-share", "mlm_probability", type=float, default=0.15, help="Fraction of the tokens that are predicted."
    ),
    _setting("--whole-words", is_flag=True, help="Mask all tokens of a word together."),
    _setting("--static-masking", is_flag=True, help="Use the same masks in every epoch."),
    _setting(
        "--dev-share",
        "dev_fraction",
        type=float,
        default=0.01,
        help="Fraction of the tokens that is held out for evaluation: whole documents, about 200,000 tokens at most.",
    ),
    _setting("--eval-every", type=int, default=500, help="Steps between two evaluations."),
    _seed,
    _precision,
)
"""Options that are fields of `PretrainSettings`."""

_placement_options = combine(
    _processes_option(
        "--devices",
        type=DevicesType(),
        metavar="[N|auto]",
        help="Processes on this machine, each with its own batches and, if there is CUDA, its own GPU. auto: all GPUs, "
        "or 1 process on the CPU.",
        show_default="1, or what torchrun started",
    ),
    _processes_option(
        "--nodes", type=click.IntRange(min=1), show_default="1, or what torchrun started", help="Number of machines."
    ),
    _processes_option(
        "--strategy",
        type=click.Choice(["auto", "ddp", "fsdp"]),
        default="auto",
        show_default=True,
        help="How processes share the model. ddp, auto: each has a copy; fsdp: each has a part of the weights.",
    ),
)


def run_options(*, config: bool = True) -> Decorator:
    """Return the options of a run that are no settings: processes, `--config`, `--resume`, `--force` and `--json`."""
    return combine(
        _placement_options,
        *([config_option] if config else []),
        _run_option("--resume", is_flag=True, help="Continue an interrupted run from its last saved state."),
        force_option,
        json_option,
    )


def pop_placement(options: dict[str, Any]) -> "Placement":
    """Remove the placement's options from `options`, and return the placement."""
    from bert_models.training import Placement

    return Placement(**{name: options.pop(name) for name in ("devices", "nodes", "strategy")})
