#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws what gpt_demo recorded as one SVG: the loss curves, and how communication overlapped with the backward pass.

usage: draw.py LOSSES.csv TIMELINE.json > picture.svg
"""
import csv
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/dev"))
import draw_timeline as timeline  # noqa: E402

WIDTH, LEFT, RIGHT, TOP, HEIGHT = timeline.WIDTH, timeline.LEFT, 40, 40, 260
BOTTOM = TOP + HEIGHT
TIMES_TOP = BOTTOM + 100
PICTURE = TIMES_TOP + 190
# What all learn alike lies on one line: the wide one is seen beside the narrow one.
STROKES = [("#fb8500", 2.2), ("#8ecae6", 7)]


def read_losses(path):
    with open(path, encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    steps = [int(row[0]) for row in rows]
    return steps, [(name, [float(row[i]) for row in rows if row[i]]) for i, name in enumerate(names[1:], 1)]


def line(x1, y1, x2, y2, colour="#cccccc"):
    print(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>')


def ticks(largest):
    step = timeline.round_step(largest)
    return [i * step for i in range(int(largest / step) + 1)]


def draw_losses(steps, curves):
    highest = max(max(losses) for _, losses in curves)

    def x_of(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps[-1]

    def y_of(loss):
        return BOTTOM - HEIGHT * loss / (highest * 1.03)

    timeline.text(LEFT, 24, "Loss of each step", 16)
    for loss in ticks(highest):
        line(LEFT, y_of(loss), WIDTH - RIGHT, y_of(loss), "#e8e8e8" if loss else "black")
        timeline.text(LEFT - 8, y_of(loss) + 4, f"{loss:g}", 11, "end")
    for step in ticks(steps[-1]):
        line(x_of(step), BOTTOM, x_of(step), BOTTOM + 5, "black")
        timeline.text(x_of(step), BOTTOM + 18, f"{step:g}", 11, "middle")
    timeline.text(WIDTH - RIGHT, BOTTOM + 36, "steps of the optimizer", 11, "end")
    for row, ((name, losses), (colour, width)) in reversed(list(enumerate(zip(curves, STROKES)))):
        points = " ".join(f"{x_of(step):.1f},{y_of(loss):.1f}" for step, loss in zip(steps, losses))
        print(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" '
              'stroke-linejoin="round"/>')
        y = TOP + 20 + 22 * row
        print(f'<line x1="{WIDTH - 230}" y1="{y}" x2="{WIDTH - 195}" y2="{y}" stroke="{colour}" '
              f'stroke-width="{width}"/>')
        timeline.text(WIDTH - 187, y + 4, name, 13)


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    steps, curves = read_losses(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    timeline.begin_picture(PICTURE)
    draw_losses(steps, curves)
    timeline.text(LEFT, TIMES_TOP - 14, "The last step of rank 0: gradients are averaged while backward runs", 16)
    print(f'<g transform="translate(0 {TIMES_TOP})">')
    timeline.draw_times(events)
    print("</g></svg>")
    return 0


sys.exit(main())
