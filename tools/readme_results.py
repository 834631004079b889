# SPDX-License-Identifier: Apache-2.0
"""Write the results table of README.md, or check that it is what the simulator says now.

python tools/readme_results.py            rewrite the table
python tools/readme_results.py --check    exit status 1 if it is out of date
"""

import argparse
import sys
from pathlib import Path

from deepum.backends.sim import bound, simulate
from deepum.report.study import steady_iterations
from deepum.reproduce.paper import ROWS

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- results: tools/readme_results.py -->\n", "<!-- end of results -->"
MACHINE = "v100-pcie3-32g"
POLICIES = ("noop", "single-level", "chained", "oracle")
TRACES = {
    "gpt2-xl-b3": ("GPT-2 XL", 3),
    "bert-large-b14": ("BERT Large", 14),
    "resnet152-b1280": ("ResNet-152", 1280),
    "dlrm-b128k": ("DLRM", 128 << 10),
}
HEAD = """\
| training step | `noop` | `single-level` | `chained` | `oracle` | bound | `chained` over `noop` | \
in the paper | faults a step, `noop` → `chained` |
|---|---|---|---|---|---|---|---|---|
"""


def _seconds(value: float) -> str:
    return f"{value:#.3g}".rstrip(".") + " s"


def _row(trace: str) -> str:
    times, faults = {}, {}
    for policy in POLICIES:
        steady = steady_iterations(simulate(trace, MACHINE, policy).iterations)
        times[policy] = sum(iteration.time_s for iteration in steady) / len(steady)
        faults[policy] = sum(iteration.faults for iteration in steady) / len(steady)
    model, batch = TRACES[trace]
    (paper,) = (row for row in ROWS if (row.model, row.batch) == (model, batch))
    cells = [
        f"{model}, batch {f'{batch >> 10}K' if batch % 1024 == 0 else batch}",
        *(_seconds(times[policy]) for policy in POLICIES),
        _seconds(bound(trace, MACHINE).bound_s),
        f"**{times['noop'] / times['chained']:.2f}×**",
        f"{paper.um_s / paper.chained_s:.2f}×",
        f"{faults['noop']:,.0f} → {faults['chained']:,.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    """Rewrite or check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = HEAD + "".join(_row(trace) for trace in TRACES)
    fresh = f"{before}{BEGIN}{table}{END}{after}"
    if fresh == text:
        return 0
    if check:
        print(f"README.md is out of date; run {Path(__file__).name}:\n{table}", file=sys.stderr)
        return 1
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
