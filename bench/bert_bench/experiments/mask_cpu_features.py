"""Runs a command as on a lesser processor: what it may not use is hidden from it and from all that it starts.

python -m bert_bench.experiments.mask_cpu_features --as avx2 -- bert-bench run CKPT …

ONNX Runtime, OpenVINO, PyTorch and CTranslate2 ask the processor what it can do and cannot all be told to do without;
here it does not say. Clock, caches and ports stay those of the processor there is. For Linux on x86-64 with a C
compiler, where the processor lets CPUID fault (`cpuid_fault` among the flags of /proc/cpuinfo). Programs that are
linked statically, or started with an environment of their own, still see everything.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

__all__ = ["main"]

_AVX512 = {
    "HIDDEN_7_0_EBX": (16, 17, 21, 26, 27, 28, 30, 31),  # F, DQ, IFMA, PF, ER, CD, BW, VL
    "HIDDEN_7_0_ECX": (1, 6, 11, 12, 14),  # VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ
    "HIDDEN_7_0_EDX": (2, 3, 8, 22, 23, 24, 25),  # 4VNNIW, 4FMAPS, VP2INTERSECT, AMX's BF16, AVX512-FP16, tiles, INT8
    "HIDDEN_7_1_EAX": (5, 21),  # AVX512-BF16, AMX-FP16
    "HIDDEN_7_1_EDX": (19,),  # AVX10
}
_LESSER: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]]]] = {
    "avx-vnni": ("avx512|amx", _AVX512),
    "avx2": (
        "avx512|amx|avx_vnni|avx_ifma|avx_ne_convert",
        {**_AVX512, "HIDDEN_7_1_EAX": (4, 5, 21, 23), "HIDDEN_7_1_EDX": (4, 5, 10, 19)},  # AVX-VNNI, IFMA and such
    ),
}
"""By name: how the flags that are hidden begin, and the bits of CPUID's leaf 7 for them (Intel's manual, volume 2)."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--as", "name", type=click.Choice([*_LESSER]), required=True, help="The best that is left.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(name: str, command: tuple[str, ...]) -> None:
    """Run COMMAND, which ends with its exit code."""
    hidden, bits = _LESSER[name]
    with tempfile.TemporaryDirectory() as folder:
        if re.search(r"[\s:]", folder):
            raise click.ClickException(f"{folder}: LD_PRELOAD divides names there; set TMPDIR to another folder")
        cpuinfo, library = Path(folder) / "cpuinfo", Path(folder) / "lesser_cpu.so"
        cpuinfo.write_text(lesser_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8"), hidden, name))
        definitions = {register: f"{sum(1 << bit for bit in of_it):#x}u" for register, of_it in bits.items()}
        definitions["CPUINFO"] = f'"{cpuinfo}"'
        compiler = [*shlex.split(os.environ.get("CC", "cc")), "-O2", "-shared", "-fPIC", "-Wl,-z,initfirst"]
        source = str(Path(__file__).with_suffix(".c"))
        flags = [f"-D{key}={value}" for key, value in definitions.items()]
        _output([*compiler, *flags, source, "-ldl", "-o", str(library)])
        preloaded = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
        environment = {**os.environ, "LD_PRELOAD": preloaded}
        flags_left = _output(["grep", "-m1", "^flags", "/proc/cpuinfo"], environment)
        if re.search(rf" (?:{hidden})", flags_left):
            raise click.ClickException(f"{library} hides nothing from grep, and would not from {command[0]}")
        try:
            ended = subprocess.run(command, env=environment, check=False).returncode
        except OSError as error:
            raise click.ClickException(f"{command[0]} cannot be started: {error}") from None
    sys.exit(128 - ended if ended < 0 else ended)


def _output(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command prints; raises `ClickException` where it cannot be run or fails."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be started: {error}") from None
    if done.returncode:
        raise click.ClickException(f"{shlex.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def lesser_cpuinfo(text: str, hidden: str, name: str) -> str:
    """`/proc/cpuinfo` without the flags that begin as `hidden` says, and with `name` in the processor's."""
    text = re.sub(rf" (?:{hidden})\w*", "", text)
    return re.sub(r"^(model name\s*: .*)$", rf"\1 as {name}", text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
