#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the last iteration of a DistributedDataParallel's timeline (ddp.timeline_json()) as an SVG.

usage: draw_timeline.py TIMELINE.json > picture.svg
"""
import json
import sys

WIDTH, LEFT, ROW, GAP = 900, 130, 34, 16
COLOURS = {"forward": "#8ecae6", "backward": "#219ebc", "wait for the rest": "#d62828"}
BUCKETS = ["#ffb703", "#fb8500", "#90be6d", "#43aa8b", "#b5838d", "#6d597a"]


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if "-h" in sys.argv or "--help" in sys.argv else 2
    with open(sys.argv[1], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    forwards = [event for event in events if event["name"] == "forward"]
    if not forwards:
        print("draw_timeline.py: no iteration in it", file=sys.stderr)
        return 1
    begin = forwards[-1]["ts"]
    events = [event for event in events if event["ts"] >= begin]
    end = max(event["ts"] + event["dur"] for event in events)
    scale = (WIDTH - LEFT - 10) / (end - begin)
    tracks = ["compute", "communication"]
    height = 30 + len(tracks) * (ROW + GAP) + 26
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
          f'font-size="12"><rect width="{WIDTH}" height="{height}" fill="white"/>')
    for row, track in enumerate(tracks):
        y = 20 + row * (ROW + GAP)
        print(f'<text x="8" y="{y + ROW / 2 + 4}">{track}</text>')
        for event in events:
            if event["tid"] != track:
                continue
            x = LEFT + (event["ts"] - begin) * scale
            width = max(1.0, event["dur"] * scale)
            name = event["name"]
            number = int(name.split()[1]) if name.startswith("bucket") else 0
            colour = COLOURS.get(name, BUCKETS[number % len(BUCKETS)])
            print(f'<g><title>{name}: {event["dur"] / 1000:.2f} ms</title>'
                  f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{colour}" stroke="white"/>')
            if width > 60:
                label = name.split(" (")[0]
                print(f'<text x="{x + 5:.1f}" y="{y + ROW / 2 + 4}">{label}</text>')
            else:
                label = name.split(" (")[0].split(" for ")[0]
                print(f'<text x="{x + width / 2:.1f}" y="{y + ROW + 10}" font-size="9" text-anchor="middle">{label}</text>')
            print("</g>")
    y = 20 + len(tracks) * (ROW + GAP)
    for tick in range(6):
        at = (end - begin) * tick / 5
        anchor = "end" if tick == 5 else "middle"
        print(f'<text x="{LEFT + at * scale:.1f}" y="{y + 14}" text-anchor="{anchor}">{at / 1000:.1f} ms</text>')
    print("</svg>")
    return 0


sys.exit(main())
