"""Files, modules and names that documentation, docstrings and comments mention exist: a rename leaves no stale mention.

Sources are read as text and with `ast`; nothing is imported. A mention is

* a path of the repository (`runtime/native/kernels.h`, `bench/results/peers-*`) or a file name (`kernels.h`),
* a dotted name of a package (`bert_runtime.cpu.session.Session`) or, in backticks, of a module or class
  (`atomic_files.atomic_write`, `Task.score`),
* in backticks in Python sources, an identifier (`max_batch_tokens`).

`EXAMPLES` holds the mentions that need not exist, with reasons. The changelog may mention names that are gone.
"""

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE_PARENTS = {
    "bert_runtime": "runtime",
    "bert_serve": "runtime",
    "bert_models": "models",
    "bert_bench": "bench",
    "bert_export": "",
}
FOLDERS = ("bert_export", "runtime", "models", "bench", "tests", "docs", ".ci")

EXAMPLES = {
    "result.md": "written by an example",
    "EncoderProtocol": "mteb",
    "constant_throughput": "locust",
    "bert_bench.experiments.NAME": "a placeholder",
    "bert_export.commands": "a group of entry points",
    "asm/prctl.h": "Linux",
    "include/onnxruntime/core/session/onnxruntime_c_api.h": "ONNX Runtime",
    "contrib_ops/cuda/bert/*attention.cc": "ONNX Runtime",
    "PackedAttention": "an operator of ONNX Runtime",
    "docs/OperatorKernels.md": "ONNX Runtime",
    "key_padding_mask": "ONNX Runtime",
    "AutoModelFor": "prefix of transformers' classes",
    "find_best_thresh": "SQuAD's evaluation script",
    "create_pretraining_data.py": "BERT's repository",
    "short_seq_prob": "BERT's repository",
    "mlm_accuracy": "a composed key",
    "num_streams": "OpenVINO",
    "save_to_disk": "datasets",
    "local_dir": "huggingface_hub",
    "HF_ENDPOINT": "huggingface_hub",
    "PIP_EXTRA_INDEX_URL": "pip",
    "app.py": "the reader's application",
    "session.x64quantprecision": "configuration key of ONNX Runtime",
    "--build-arg": "docker",
    "--cap-drop": "docker",
    "--read-only": "docker",
    "--from-literal": "kubectl",
    "--logdir": "tensorboard",
    "--nnodes": "torchrun",
    "--rdzv-*": "torchrun",
}


@cache
def files() -> tuple[str, ...]:
    """Paths of the repository's files, from its root, but for this one: it mentions names that do not exist."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    relative = (path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts)
    return tuple(sorted(set(relative) - {"tests/test_names_exist.py"}))


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: str) -> ast.Module:
    return ast.parse(source(path))


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(tree(path)))


def python_files() -> Iterator[str]:
    return (path for path in files() if path.endswith(".py"))


# Prose: what the mentions are read from.


@cache
def python_prose(path: str) -> tuple[tuple[int, str], ...]:
    """Line and text of comments and docstrings, those of attributes included."""
    tokens = tokenize.generate_tokens(io.StringIO(source(path)).readline)
    found = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    found += [
        (node.lineno, node.value.value)
        for node in nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return tuple(found)


def comments(path: str) -> Iterator[tuple[int, str]]:
    """Comments of C++ sources, or of files with `#`."""
    pattern = r"//[^\n]*|/\*.*?\*/" if path.endswith((".cc", ".h", ".c")) else r"(?m)^\s*#[^\n]*|(?<=\s)# [^\n]*"
    for match in re.finditer(pattern, source(path), re.DOTALL):
        yield source(path)[: match.start()].count("\n") + 1, match[0]


def prose() -> Iterator[tuple[str, int, str]]:
    """File, line and text of everything that people read."""
    texts: Iterable[tuple[int, str]]
    for path in files():
        if path.endswith(".py"):
            texts = python_prose(path)
        elif path.endswith((".cc", ".h", ".c")) or path in ("Makefile", "pyproject.toml") or path.startswith(".ci/"):
            texts = comments(path)
        elif path.endswith(".md") and path != "CHANGELOG.md" and not path.startswith("bench/results/"):
            texts = enumerate(source(path).splitlines(), 1)
        else:
            continue
        yield from ((path, line, text) for line, text in texts)


# Definitions: what the mentions are looked up in.


@cache
def modules() -> dict[str, str]:
    """Files of the packages' and the tests' modules and packages, by dotted name."""
    found = {}
    for path in python_files():
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        if parts[0] in PACKAGE_PARENTS.values():
            parts = parts[1:]
        found[".".join(parts)] = path
    return found


@cache
def top_level_names(path: str) -> frozenset[str]:
    """Names that a module defines or imports, in branches too."""
    return frozenset(_defined(tree(path).body))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            case ast.If() | ast.Try() | ast.With() | ast.For():
                for field in ("body", "orelse", "handlers", "finalbody"):
                    for inner in getattr(node, field, []):
                        yield from _defined(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])
            case _:
                yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name) and _is_stored(name))


def _is_stored(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Classes of the packages and the tests by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in python_files():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def has_attribute(class_name: str, attribute: str) -> bool:
    """Whether a class of that name has an attribute, its own or inherited; a base of another package may have any."""
    for node in classes()[class_name]:
        own = set(_defined(node.body))
        own |= {name.attr for name in ast.walk(node) if isinstance(name, ast.Attribute) and _is_stored(name)}
        if attribute in own:
            return True
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            known = name in ("ABC", "Generic", "NamedTuple", "Protocol", "object")
            if (name in classes() and name != class_name and has_attribute(name, attribute)) or (
                name not in classes() and not known
            ):
                return True
    return False


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, a name in a module, or an attribute of a class in a module."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module, names = ".".join(parts[:length]), parts[length:]
        if module in modules():
            if not names:
                return True
            if names[0] not in top_level_names(modules()[module]):
                return False
            return len(names) == 1 or names[0] not in classes() or has_attribute(names[0], names[1])
    return False


@cache
def identifiers() -> frozenset[str]:
    """Identifiers in code of all languages; docstrings and comments are left out."""
    found = {*keyword.kwlist, *dir(builtins)}
    for path in files():
        if path.endswith(".py"):
            for node in nodes(path):
                match node:
                    case ast.keyword(arg=str(name)) | ast.arg(arg=name) | ast.alias(name=name) | ast.Name(id=name):
                        found.update(name.split("."))
                    case ast.Attribute(attr=name) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                        found.add(name)
        elif path.endswith((".cc", ".h", ".c")):
            found.update(re.findall(r"\w+", re.sub(r"//[^\n]*|/\*.*?\*/", "", source(path), flags=re.DOTALL)))
    return frozenset(found)


@cache
def code_words() -> frozenset[str]:
    """Identifiers, modules, and the words in strings and build files: keys of JSON, names of operators, options."""
    found = {*identifiers(), *module_stems()}
    for path in python_files():
        docstrings = {text for _, text in python_prose(path)}
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docstrings:
                found.update(re.findall(r"\w+", node.value))
    return frozenset(found.union(*(re.findall(r"\w+", source(path)) for path in ("Makefile", "pyproject.toml"))))


@cache
def attributes() -> frozenset[str]:
    """Names that are attributes of something: functions, fields, names of modules, and what code reads with a dot."""
    found = {name for path in python_files() for name in top_level_names(path)}
    for path in python_files():
        for node in nodes(path):
            match node:
                case ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                    found.add(name)
                case ast.ClassDef():
                    found.update(_defined(node.body))
    return frozenset(found)


@cache
def module_stems() -> frozenset[str]:
    return frozenset(dotted.rpartition(".")[2] for dotted in modules())


@cache
def flags() -> frozenset[str]:
    """Options of the command lines, and those that build files and tests pass to other programs."""
    found = set(FLAG.findall(source("Makefile") + source(".ci/run")))
    for path in python_files():
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
                found.update(FLAG.findall(node.value.replace("/", " ")))
    return frozenset(found)


# Mentions.

_ROOTS = r"(?:bert_runtime|bert_serve|bert_models|bert_export|bert_bench|runtime|models|bench|tests|docs|\.ci)"
PATH = re.compile(rf"(?<![\w./~-]){_ROOTS}/[\w./*-]*[\w*/]")
FILE_NAME = re.compile(r"(?<![\w./*-])(?:[\w-]+/)*[\w-]+\.(?:py|cc|h|c)\b(?![./]\w|\()")
DOTTED = re.compile(r"(?<![\w./-])bert_(?:runtime|models|bench|export)(?:\.\w+)+")
BACKTICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
QUALIFIED = re.compile(r"(\w+)\.(\w+)(?:\.\w+)*(?:\(.*\))?")
EXTENSION = re.compile(r"\.(?:c|cc|csv|data|h|json|jsonl|onnx|png|py|safetensors|txt|yaml)$")
FLAG = re.compile(r"(?<![\w/-])--[a-z][a-z0-9-]*[a-z0-9]")
IDENTIFIER = re.compile(r"_?[A-Za-z]\w+_\w*|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+")


def path_exists(path: str) -> bool:
    parents = ("", *(f"{parent}/" for parent in PACKAGE_PARENTS.values() if parent))
    return any([*ROOT.glob(f"{parent}{path}".rstrip("/"))] for parent in parents)


def missing_names(path: str, text: str) -> Iterator[str]:
    """Mentions in a text that do not exist."""
    yield from (mention for mention in PATH.findall(text) if not path_exists(mention))
    for mention in FILE_NAME.findall(text):
        if not PATH.match(mention) and not any(f"/{file}".endswith(f"/{mention}") for file in files()):
            yield mention
    yield from (
        mention for mention in DOTTED.findall(text) if not mention.endswith((".py", ".md")) and not resolves(mention)
    )
    for quoted in BACKTICKS.findall(text):
        if (qualified := QUALIFIED.fullmatch(quoted)) and not EXTENSION.search(quoted):
            if qualified[1] not in PACKAGE_PARENTS and not _qualified_exists(qualified[1], qualified[2]):
                yield quoted
        elif (
            (path == "README.md" or path.endswith(".py"))
            and IDENTIFIER.fullmatch(quoted)
            and quoted not in code_words()
        ):
            yield quoted
    yield from (flag for flag in FLAG.findall(text) if flag not in flags())


def _qualified_exists(first: str, second: str) -> bool:
    """Whether `first.second` exists if `first` is a class of ours, or a module or variable (`model.stream`)."""
    if first in classes():
        return has_attribute(first, second)
    return first not in module_stems() or second in attributes()


@pytest.mark.parametrize(
    "text",
    [
        "runtime/native/simd.h",
        "bert_runtime/tasks/",
        "bench/results/peers-*",
        "see simd.h and native/kernels.h",
        "bert_runtime.load",
        "bert_runtime.bundle.manifest.Manifest.read",
        "`atomic_files.atomic_write`",
        "`Task.score`",
        "`bundle.json`",
        "`max_batch_tokens` and `[B, S]`",
        "--precision",
    ],
)
def test_existing_names_are_accepted(text: str) -> None:
    assert not [*missing_names("module.py", text)]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("runtime/native/gone.h is", "runtime/native/gone.h"),
        ("in bert_runtime/gone/", "bert_runtime/gone/"),
        ("bench/results/gone-*", "bench/results/gone-*"),
        ("see gone.py.", "gone.py"),
        ("tasks/gone.cc", "tasks/gone.cc"),
        ("bert_runtime.gone", "bert_runtime.gone"),
        ("bert_runtime.bundle.manifest.Manifest.gone", "bert_runtime.bundle.manifest.Manifest.gone"),
        ("`Task.gone`", "Task.gone"),
        ("`model.is_gone(…)`", "model.is_gone(…)"),
        ("`is_gone`", "is_gone"),
        ("--gone-flag", "--gone-flag"),
    ],
)
def test_stale_names_are_found(text: str, missing: str) -> None:
    assert [*missing_names("module.py", text)] == [missing]


def test_every_mention_exists() -> None:
    stale = [
        f"{path}:{line}: {mention}"
        for path, line, text in prose()
        for mention in missing_names(path, text)
        if not any(fnmatch(mention, example) for example in EXAMPLES)
    ]
    assert not stale, f"{len(stale)} names that do not exist:\n" + "\n".join(stale)
