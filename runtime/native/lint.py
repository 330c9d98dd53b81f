"""Check the C++ sources with clang-format and clang-tidy. A tool that is not installed is skipped."""

import shutil
import subprocess
import sys

from hatch_build import LIBRARIES, SOURCE_DIR, compile_flags


def lint_commands() -> dict[str, list[list[str]]]:
    """Return the commands of each tool. clang-tidy reads each source file once per instruction set."""
    sources = sorted(SOURCE_DIR.glob("*.cc"))
    files = [*map(str, (*sources, *sorted(SOURCE_DIR.glob("*.h"))))]
    return {
        "clang-format": [["--dry-run", "-Werror", *files]],
        "clang-tidy": [
            ["--quiet", str(source), "--", *compile_flags(library, source)]
            for library in LIBRARIES
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
