#!/usr/bin/env python3
"""Draw what serve.py, generator.py or steady.py have printed, as PNG beside it.

python benchmarks/plot.py benchmarks/results/serve-h200.txt [FILE ...]
"""

import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

LINE = re.compile(r"streams +(\d+) +(\S+) +([\d.]+) tok/s(.*)")
LATENCY = re.compile(r"(first token|gap|iterate) p50 +([\d.]+) ms +p99 +([\d.]+) ms")
MINUTE = re.compile(r"minute +(\d+) +([\d.]+) tok/s +(\d+) MB(?:, (\d+) MB on GPUs)?")


def read(text):
    """By name and quantity: points (streams, value)."""
    series = {}
    for streams, name, rate, rest in LINE.findall(text):
        series.setdefault("tokens a second", {}).setdefault(name, []).append((streams, rate))
        for what, p50, p99 in LATENCY.findall(rest):
            lines = series.setdefault(f"{what}, ms", {})
            lines.setdefault(f"{name} p50", []).append((streams, p50))
            lines.setdefault(f"{name} p99", []).append((streams, p99))
    for minute, rate, host, device in MINUTE.findall(text):
        series.setdefault("tokens a second", {}).setdefault("server", []).append((minute, rate))
        lines = series.setdefault("memory, MB", {})
        for name, value in ("host", host), ("GPUs", device):
            if value:
                lines.setdefault(name, []).append((minute, value))
    return series


def draw(path):
    text = path.read_text()
    series = read(text)
    if not series:
        sys.exit(f"{path}: no line that this draws")
    figure, axes = pyplot.subplots(
        1, len(series), figsize=(5.5 * len(series), 4.2), squeeze=False, layout="constrained"
    )
    for axis, (title, lines) in zip(axes[0], series.items(), strict=True):
        for name, points in lines.items():
            style = "--" if name.endswith("p99") else "-"
            axis.plot(
                *zip(*((int(x), float(y)) for x, y in points), strict=True), style, label=name
            )
            axis.lines[-1].set_marker("o")
        if MINUTE.search(text):
            axis.set(xlabel="minute")
        else:
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:.0f}")
            axis.set(xlabel="streams")
        axis.set(title=title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()
    notes = [line for line in text.splitlines() if line.startswith("#")]
    figure.suptitle("\n".join(notes[:2]), fontsize=7)
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[1:]:
        draw(pathlib.Path(name))


if __name__ == "__main__":
    main()
