"""Check the C++ sources with clang-format and clang-tidy. A tool that is not installed is skipped.

clang-tidy reads the sources for x86-64, and for arm64 where that one's C++ library is installed.
"""

import shutil
import subprocess
import sys

from hatch_build import LIBRARIES_OF, SOURCE_DIR, compile_flags


def targets() -> list[str]:
    """Return the processor families whose C++ library clang finds."""
    found = []
    for machine in LIBRARIES_OF:
        probe = ["clang-tidy", "--quiet", "--checks=-*,misc-misplaced-const", "/dev/stdin", "--", "-x", "c++",
                 f"--target={machine}-linux-gnu", "-include", "vector"]  # fmt: skip
        if shutil.which("clang-tidy") and subprocess.run(probe, capture_output=True, check=False).returncode:
            sys.stdout.write(f"clang-tidy: skipped for {machine}, whose C++ library is not installed\n")
        else:
            found.append(machine)
    return found


def lint_commands() -> dict[str, list[list[str]]]:
    """Return the commands of each tool. clang-tidy reads each source file once per instruction set."""
    sources = sorted(SOURCE_DIR.glob("*.cc"))
    files = [*map(str, (*sources, *sorted(SOURCE_DIR.glob("*.h"))))]
    return {
        "clang-format": [["--dry-run", "-Werror", *files]],
        "clang-tidy": [
            ["--quiet", str(source), "--", f"--target={machine}-linux-gnu", *compile_flags(library, source)]
            for machine in targets()
            for library in LIBRARIES_OF[machine]
            for source in sources
        ],
    }


def main() -> int:
    """Run the tools that are installed; return 1 if one reports a problem, else 0."""
    has_failed = False
    for tool, commands in lint_commands().items():
        if shutil.which(tool) is None:
            sys.stdout.write(f"{tool}: skipped, it is not installed\n")
            continue
        results = [
            subprocess.run([tool, *command], capture_output=True, text=True, check=False) for command in commands
        ]
        failures = [result for result in results if result.returncode]
        for result in failures:
            sys.stdout.write(result.stdout + result.stderr)
        sys.stdout.write(f"{tool}: {'failed' if failures else 'passed'}\n")
        has_failed |= bool(failures)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
