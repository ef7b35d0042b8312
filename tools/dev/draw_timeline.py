#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the last iteration of a DistributedDataParallel's timeline (ddp.timeline_json()) as an SVG: when buckets
travelled, or what they hold.

usage: draw_timeline.py [--buckets] TIMELINE.json > picture.svg
"""
import html
import json
import sys

WIDTH, LEFT, ROW, GAP = 900, 130, 34, 20
COLOURS = {"forward": "#8ecae6", "backward": "#219ebc", "wait for the rest": "#d62828"}
BUCKETS = ["#ffb703", "#fb8500", "#90be6d", "#43aa8b", "#b5838d", "#6d597a"]


def colour_of(bucket):
    return BUCKETS[bucket % len(BUCKETS)]


def text(x, y, words, size=12, anchor="start"):
    print(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{html.escape(words)}</text>')


def box(x, y, width, height, colour, title):
    print(f'<g><title>{html.escape(title)}</title><rect x="{x:.1f}" y="{y}" width="{max(1.0, width):.1f}" '
          f'height="{height}" fill="{colour}" stroke="white"/></g>')


def begin_picture(height):
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">'
          f'<rect width="{WIDTH}" height="{height}" fill="white"/>')


def round_step(span):
    """Of ticks: 1, 2 or 5 times a power of ten, four to nine of them."""
    step = 1.0
    while span / step > 9:
        step *= 10
    while span / step < 4:
        step /= 10
    for factor in (5, 2):
        if span / (step * factor) >= 4:
            return step * factor
    return step


def draw_times(events):
    forwards = [event for event in events if event["name"] == "forward"]
    if not forwards:
        sys.exit("draw_timeline.py: no iteration in it")
    begin = forwards[-1]["ts"]
    events = [event for event in events if event["ts"] >= begin]
    end = max(event["ts"] + event["dur"] for event in events)
    scale = (WIDTH - LEFT - 40) / (end - begin)
    tracks = ["compute", "communication"]
    begin_picture(30 + len(tracks) * (ROW + GAP) + 40)
    for row, track in enumerate(tracks):
        y = 20 + row * (ROW + GAP)
        text(8, y + ROW / 2 + 4, track)
        for event in events:
            if event["tid"] != track:
                continue
            x, width, name = LEFT + (event["ts"] - begin) * scale, event["dur"] * scale, event["name"]
            number = int(name.split()[1]) if name.startswith("bucket") else 0
            box(x, y, width, ROW, COLOURS.get(name, colour_of(number)), f'{name}: {event["dur"] / 1000:.2f} ms')
            if width > 60:
                text(x + 5, y + ROW / 2 + 4, name.split(" (")[0])
            else:
                text(x + width / 2, y + ROW + 12, name.split(" (")[0].split(" for ")[0], 10, "middle")
    y = 20 + len(tracks) * (ROW + GAP)
    span = (end - begin) / 1000
    step = round_step(span)
    for tick in range(int(span / step) + 1):
        x = LEFT + tick * step * 1000 * scale
        print(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 5}" stroke="black"/>')
        text(x, y + 18, f"{tick * step:g}", 11, "middle")
    text(WIDTH - 8, y + 34, "milliseconds since forward began", 11, "end")
    print("</svg>")


def draw_buckets(buckets):
    """One strip of all gradients in the order in which they travel, a line below for each bucket."""
    total = sum(each["bytes"] for bucket in buckets for each in bucket)
    scale = (WIDTH - 20) / total
    begin_picture(20 + ROW + 24 + 20 * len(buckets) + 6)
    x = 10.0
    for number, bucket in enumerate(buckets):
        for each in bucket:
            width = each["bytes"] * scale
            box(x, 14, width, ROW, colour_of(number), f'{each["name"]}: {each["bytes"] / 2**20:.2f} MiB')
            x += width
    text(10, 14 + ROW + 14, "first to travel: the last layers", 11)
    text(WIDTH - 10, 14 + ROW + 14, "last: the first layers", 11, "end")
    for number, bucket in enumerate(buckets):
        y = 20 + ROW + 24 + 20 * number
        box(10, y, 14, 14, colour_of(number), f"bucket {number}")
        size = sum(each["bytes"] for each in bucket) / 2**20
        text(30, y + 12, f'bucket {number}: {size:.1f} MiB, {len(bucket)} gradients, {bucket[0]["name"]} to '
                         f'{bucket[-1]["name"]}')
    print("</svg>")


def main():
    arguments = [each for each in sys.argv[1:] if each != "--buckets"]
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if "-h" in sys.argv or "--help" in sys.argv else 2
    with open(arguments[0], encoding="utf-8") as file:
        timeline = json.load(file)
    if "--buckets" in sys.argv:
        draw_buckets(timeline["buckets"])
    else:
        draw_times(timeline["traceEvents"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
