#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws what 13_regrow.cpp recorded as an SVG: the loss of each step, and when the number of processes changed.

usage: draw_regrow.py LOSSES.csv > picture.svg
"""
import csv
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools/dev"))
import draw_timeline as timeline  # noqa: E402

WIDTH, LEFT, RIGHT, TOP, HEIGHT = timeline.WIDTH, 60, 30, 70, 300
BOTTOM = TOP + HEIGHT
LOST, GROWN = "#d62828", "#43aa8b"


def line(x1, y1, x2, y2, colour, dashes=""):
    print(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {dashes}/>')


def ticks(largest):
    step = timeline.round_step(largest)
    return [i * step for i in range(int(largest / step) + 1)]


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        rows = [(int(row["step"]), float(row["loss"]), int(row["ranks"])) for row in csv.DictReader(file)]
    last, highest = rows[-1][0], max(loss for _, loss, _ in rows)

    def x_of(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y_of(loss):
        return BOTTOM - HEIGHT * loss / (highest * 1.05)

    timeline.begin_picture(BOTTOM + 50)
    timeline.text(LEFT, 26, "Loss of each step, mean over the processes", 16)
    for loss in ticks(highest):
        line(LEFT, y_of(loss), WIDTH - RIGHT, y_of(loss), "#e8e8e8" if loss else "black")
        timeline.text(LEFT - 8, y_of(loss) + 4, f"{loss:g}", 11, "end")
    for step in ticks(last):
        line(x_of(step), BOTTOM, x_of(step), BOTTOM + 5, "black")
        timeline.text(x_of(step), BOTTOM + 18, f"{step:g}", 11, "middle")
    timeline.text(WIDTH - RIGHT, BOTTOM + 38, "steps of the optimizer", 11, "end")

    begin = rows[0]
    for before, now in zip(rows, rows[1:] + [None]):
        if now is not None and now[2] == before[2]:
            continue
        middle = (x_of(begin[0]) + x_of(before[0])) / 2
        timeline.text(middle, TOP - 12, f"{before[2]} processes", 13, "middle")
        if now is None:
            break
        x, is_loss = (x_of(before[0]) + x_of(now[0])) / 2, now[2] < before[2]
        line(x, TOP - 24, x, BOTTOM, LOST if is_loss else GROWN, 'stroke-width="2" stroke-dasharray="6 4"')
        words = "one is killed: shrink()" if is_loss else "a new one joins: grow()"
        timeline.text(x + 6, TOP + 14, words, 12)
        begin = now
    points = " ".join(f"{x_of(step):.1f},{y_of(loss):.1f}" for step, loss, _ in rows)
    print(f'<polyline points="{points}" fill="none" stroke="#219ebc" stroke-width="2" stroke-linejoin="round"/></svg>')
    return 0


sys.exit(main())
