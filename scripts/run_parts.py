"""Run targets of make one after the other, and say how long each took: `run_parts.py lint test`.

It ends with the first target that fails, and says the times all the same.
"""

import os
import subprocess
import sys


def main(targets: list[str]) -> int:
    times: list[tuple[str, float, float]] = []
    status = 0
    for target in targets:
        before = os.times()
        status = subprocess.call([os.environ.get("MAKE", "make"), "--no-print-directory", target])
        now = os.times()
        cpu = (now.children_user - before.children_user) + (
            now.children_system - before.children_system
        )
        times.append((target, now.elapsed - before.elapsed, cpu))
        if status:
            break
    for target, wall, cpu in times:
        print(f"{target:12} {wall / 60:5.1f} min {cpu:6.0f} CPU s")
    print(f"load {os.getloadavg()[0]:.1f} at the end" + (f"; {target} failed" if status else ""))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
