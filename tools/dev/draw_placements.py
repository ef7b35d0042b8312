#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws what each rank of a 2 x 2 mesh holds of a 4 x 4 matrix under some placements, as an SVG.

usage: draw_placements.py > docs/pictures/placements.svg
"""
import html

SIZE, CELL, GAP, TOP, LEFT, PANEL = 4, 16, 26, 62, 34, 222
HELD = [["#219ebc", "#fb8500"], ["#90be6d", "#b5838d"]]
SUMMANDS = ["#ffb703", "#d4a0c4"]
EMPTY = "#f1f1f1"
PANELS = [["S(0)", "R"], ["S(0)", "S(1)"], ["R", "P(sum)"], ["S(0)", "S(0)"]]
NOTES = ["the ranks of a row hold the same half", "each rank holds a quarter", "the matrix is the sum of a and b",
         "halves, and each of them cut again"]


def text(x, y, words, size=12, anchor="middle", style=""):
    print(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{style}>{html.escape(words)}</text>')


def held(placements, coordinate):
    """The ranges of rows and columns that a rank holds: mesh dimensions cut from left to right."""
    ranges = [(0, SIZE), (0, SIZE)]
    for placement, index in zip(placements, coordinate):
        if placement.startswith("S"):
            dim = int(placement[2])
            begin, end = ranges[dim]
            half = (end - begin) // 2
            ranges[dim] = (begin + half * index, begin + half * (index + 1))
    return ranges


def colour_of(placements, coordinate):
    if placements[1].startswith("P"):
        return SUMMANDS[coordinate[1]]
    index = [i for i, placement in zip(coordinate, placements) if placement.startswith("S")]
    return HELD[index[0]][index[1] if len(index) > 1 else 0]


def draw_rank(x, y, placements, coordinate):
    rows, columns = held(placements, coordinate)
    for row in range(SIZE):
        for column in range(SIZE):
            inside = rows[0] <= row < rows[1] and columns[0] <= column < columns[1]
            colour = colour_of(placements, coordinate) if inside else EMPTY
            print(f'<rect x="{x + column * CELL}" y="{y + row * CELL}" width="{CELL}" height="{CELL}" '
                  f'fill="{colour}" stroke="white"/>')
    name = f"rank {2 * coordinate[0] + coordinate[1]}"
    if placements[1].startswith("P"):
        name += f': {"ab"[coordinate[1]]}'
    text(x + SIZE * CELL / 2, y + SIZE * CELL + 14, name, 11)


def main():
    width, height = PANEL * len(PANELS) + 8, TOP + 2 * (SIZE * CELL + GAP) + 24
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
          f'<rect width="{width}" height="{height}" fill="white"/>')
    for number, placements in enumerate(PANELS):
        x = number * PANEL + LEFT
        middle = x + (2 * SIZE * CELL + GAP) / 2
        text(middle, 22, f'[{", ".join(placements)}]', 15, style=' font-family="monospace" font-weight="bold"')
        for index in range(2):
            text(x + index * (SIZE * CELL + GAP) + SIZE * CELL / 2, TOP - 10, f"tp {index}", 11)
            text(x - 16, TOP + index * (SIZE * CELL + GAP) + SIZE * CELL / 2 + 4, f"dp {index}", 11)
        for row in range(2):
            for column in range(2):
                draw_rank(x + column * (SIZE * CELL + GAP), TOP + row * (SIZE * CELL + GAP), placements, (row, column))
        text(middle, height - 10, NOTES[number], 10)
    print("</svg>")


if __name__ == "__main__":
    main()
