"""Run a command with CPU features masked: hide AMX, AVX-512 or AVX-VNNI from it and from every process it starts.

python -m bert_bench.experiments.mask_cpu_features --isa avx2 -- bert-bench run CKPT …

ONNX Runtime, OpenVINO, PyTorch and CTranslate2 choose their kernels by CPUID, and not all of them have a switch for it.
This command builds `mask_cpu_features.c` and preloads it: CPUID then faults, and the library answers without the masked
bits. Reads of /proc/cpuinfo see a copy without the masked flags. Clock speed, caches and execution ports stay those of
the real CPU.

Needs Linux on x86-64, a C compiler and a CPU with CPUID faulting (`cpuid_fault` in the flags of /proc/cpuinfo).
Statically linked programs, and programs started with a new environment, still see every feature.

Made the bench/results/peers-as-* folders.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

__all__ = ["main"]

_AVX512_AND_AMX = {
    "HIDDEN_7_0_EBX": (16, 17, 21, 26, 27, 28, 30, 31),  # F, DQ, IFMA, PF, ER, CD, BW, VL
    "HIDDEN_7_0_ECX": (1, 6, 11, 12, 14),  # VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ
    "HIDDEN_7_0_EDX": (2, 3, 8, 22, 23, 24, 25),  # 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, AVX512-FP16, AMX-TILE, -INT8
    "HIDDEN_7_1_EAX": (5, 21),  # AVX512-BF16, AMX-FP16
    "HIDDEN_7_1_EDX": (19,),  # AVX10
}


@dataclass(frozen=True)
class _Mask:
    """The features to hide so that one instruction set is the best that is left."""

    flags: str
    """Regular expression of the prefixes of the hidden flags in /proc/cpuinfo."""

    cpuid_bits: Mapping[str, tuple[int, ...]]
    """Hidden bits of CPUID leaf 7 by subleaf and register (Intel SDM, volume 2A, CPUID)."""


_MASKS = {
    "avx512": _Mask(
        "amx",
        {
            "HIDDEN_7_0_EBX": (),
            "HIDDEN_7_0_ECX": (),
            "HIDDEN_7_0_EDX": (22, 24, 25),  # AMX-BF16, -TILE, -INT8
            "HIDDEN_7_1_EAX": (21,),  # AMX-FP16
            "HIDDEN_7_1_EDX": (8,),  # AMX-COMPLEX
        },
    ),
    "avx-vnni": _Mask("avx512|amx", _AVX512_AND_AMX),
    "avx2": _Mask(
        "avx512|amx|avx_vnni|avx_ifma|avx_ne_convert",
        {
            **_AVX512_AND_AMX,
            "HIDDEN_7_1_EAX": (4, 5, 21, 23),  # AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA
            "HIDDEN_7_1_EDX": (4, 5, 10, 19),  # AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16, AVX10
        },
    ),
}
"""Masks by the name of the best instruction set that they leave."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--isa", type=click.Choice([*_MASKS]), required=True, help="Best instruction set to leave visible.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(isa: str, command: tuple[str, ...]) -> None:
    """Run COMMAND with CPU features masked, and exit with its exit code.

    Newer instruction sets than --isa are hidden from COMMAND and from every process that it starts. Needs Linux on
    x86-64, a C compiler (CC) and a CPU with CPUID faulting.
    """
    with tempfile.TemporaryDirectory() as folder:
        if re.search(r"[\s:]", folder):
            raise click.ClickException(
                f"{folder}: LD_PRELOAD cannot hold a path with spaces or colons; set TMPDIR to another folder"
            )
        library = _build_library(_MASKS[isa], isa, Path(folder))
        preloaded = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
        environment = {**os.environ, "LD_PRELOAD": preloaded}
        visible = _output(["grep", "-m1", "^flags", "/proc/cpuinfo"], environment)
        if re.search(rf" (?:{_MASKS[isa].flags})", visible):
            raise click.ClickException(f"{library} masks nothing for grep, so it would not for {command[0]} either")
        try:
            exit_code = subprocess.run(command, env=environment, check=False).returncode
        except OSError as error:
            raise click.ClickException(f"{command[0]} cannot be started: {error}") from None
    sys.exit(128 - exit_code if exit_code < 0 else exit_code)


def _build_library(mask: _Mask, isa: str, folder: Path) -> Path:
    """Write the masked cpuinfo and compile `mask_cpu_features.c`, both into `folder`; return the library's path."""
    cpuinfo, library = folder / "cpuinfo", folder / "mask_cpu_features.so"
    cpuinfo.write_text(masked_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8"), mask.flags, isa))
    definitions = {register: f"{sum(1 << bit for bit in bits):#x}u" for register, bits in mask.cpuid_bits.items()}
    definitions["CPUINFO"] = f'"{cpuinfo}"'
    compiler = [*shlex.split(os.environ.get("CC", "cc")), "-O2", "-shared", "-fPIC", "-Wl,-z,initfirst"]
    source = str(Path(__file__).with_suffix(".c"))
    _output(
        [*compiler, *(f"-D{name}={value}" for name, value in definitions.items()), source, "-ldl", "-o", str(library)]
    )
    return library


def _output(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Return the standard output of `command`; raise `ClickException` if it cannot be started or fails."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be started: {error}") from None
    if done.returncode:
        raise click.ClickException(f"{shlex.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def masked_cpuinfo(text: str, hidden: str, isa: str) -> str:
    """Return the text of /proc/cpuinfo without the flags that match `hidden`, and with `isa` in the model name."""
    text = re.sub(rf" (?:{hidden})\w*", "", text)
    return re.sub(r"^(model name\s*: .*)$", rf"\1 as {isa}", text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
