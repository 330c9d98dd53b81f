"""Make a folder with an arm64 Python and the packages of the extra `cpu`, for QEMU's user mode: `aarch64.py FOLDER`.

    FOLDER/root    Python and the C libraries, from the packages of this machine's Debian
    FOLDER/site    numpy, onnxruntime, tokenizers and what they need, from the index's wheels for arm64

It needs apt-get, dpkg and pip, and writes below FOLDER only.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
SYSTEM_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
PACKAGES = ("numpy", "onnxruntime", "tokenizers", "click", "rich")
MANYLINUX = ("manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28")
PROCESSORS = 2

CPUINFO = """processor\t: {index}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd03
CPU revision\t: 4

"""
"""An entry of /proc/cpuinfo: onnxruntime 1.31.1 crashes on that of x86-64, which QEMU passes on.

It is a Cortex-A53's, also for newer processors: their instructions are announced by the auxiliary vector, while the
name of a newer one would have onnxruntime use them on an emulated older one.
"""


def main(folder: Path) -> None:
    """Make the folder, unless it is complete."""
    complete = folder / "complete"
    if complete.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "root"
    _unpack_system(root, folder / "apt")
    _install_packages(folder / "site", python_version(root))
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text("".join(CPUINFO.format(index=index) for index in range(PROCESSORS)))
    shutil.rmtree(folder / "apt")
    complete.touch()


def python_version(root: Path) -> str:
    """Return the version of the Python in a root folder, such as 3.11."""
    (python,) = root.glob("usr/bin/python3.[0-9]*")
    return python.name.removeprefix("python")


def _unpack_system(root: Path, state: Path) -> None:
    """Download the system's packages and what they depend on, and unpack them without installing them."""
    for name in ("lists/partial", "cache/archives/partial", "etc"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
    }
    apt = ["apt-get", "-q", "-y", *(word for item in options.items() for word in ("-o", "{}={}".format(*item)))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "install", "--download-only", "--no-install-recommends", *SYSTEM_PACKAGES], check=True)
    root.mkdir()
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg", "--extract", str(package), str(root)], check=True)


def _install_packages(site: Path, version: str) -> None:
    """Install the index's wheels for arm64 into a folder."""
    platforms = [option for tag in MANYLINUX for option in ("--platform", f"{tag}_aarch64")]
    abis = [option for abi in (f"cp{version.replace('.', '')}", "abi3", "none") for option in ("--abi", abi)]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "--quiet",
               "--target", str(site), "--only-binary", ":all:", "--implementation", "cp", "--python-version", version,
               "-c", str(CONSTRAINTS), *platforms, *abis, *PACKAGES]  # fmt: skip
    subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
