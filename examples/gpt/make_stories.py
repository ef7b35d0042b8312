#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes stories.txt, the text the GPT learns: short stories out of a small grammar, written for this repository.

    python3 make_stories.py > stories.txt

A story is six lines: somebody lives somewhere, wishes for something, meets somebody, they talk, they
find it, and all is well. Whoever appears keeps name, kind and pronoun to the end, and the wish comes back in later
sentences, so a model has something to learn beyond spelling: who "she" is, what was wished for, where it was found.
"""
import random

NAMES = {
    "she": ["Ada", "Mina", "Rosa", "Ida", "Vera", "Nell"],
    "he": ["Tom", "Otto", "Finn", "Hugo", "Bela", "Karl"],
}
KINDS = ["fox", "owl", "hare", "bear", "mouse", "otter", "badger", "crow", "hedgehog", "goose"]
TEMPERS = ["small", "old", "clever", "shy", "brave", "sleepy", "cheerful", "patient"]
HOMES = ["under a hill", "by the river", "in a hollow oak", "near the mill", "at the edge of the wood", "behind the old wall"]
WISHES = {  # what is wished for: where it is found, what is done with it
    "a red apple": ("in the garden", "ate it slowly"),
    "a warm coat": ("at the market", "put it on at once"),
    "a silver bell": ("on the bridge", "rang it three times"),
    "a little boat": ("by the lake", "rowed to the island"),
    "a bright lamp": ("in the tower", "lit it before dark"),
    "a map of the wood": ("under a stone", "read it twice"),
    "a pot of honey": ("behind the hives", "shared it fairly"),
    "a long ladder": ("in the barn", "climbed up to see the stars"),
}
HELPERS = ["asked for nothing", "wanted to hear a song", "wanted half of it", "only wished for company"]
WEATHER = ["The sun was low", "It rained a little", "The wind was cold", "Snow lay on the path", "The night was clear"]
LESSONS = [
    "Two can do what one cannot.",
    "Good things take time.",
    "A friend is worth the walk.",
    "Whoever asks will find the way.",
    "Slow steps go far.",
]


def somebody(rng, taken):
    pronoun = rng.choice(sorted(NAMES))
    name = rng.choice([n for n in NAMES[pronoun] if n not in taken])
    return name, pronoun, rng.choice(KINDS)


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def story(rng):
    name, pronoun, kind = somebody(rng, ())
    friend, friend_pronoun, friend_kind = somebody(rng, (name,))
    wish = rng.choice(sorted(WISHES))
    place, use = WISHES[wish]
    thing = "the " + wish.split(" ", 1)[1]
    he, friend_he = pronoun.capitalize(), friend_pronoun.capitalize()
    temper = rng.choice(TEMPERS)
    begin = rng.choice([
        f"Once there was {article(temper)} {kind} called {name}, who lived {rng.choice(HOMES)}.",
        f"{name} was {article(temper)} {kind} and lived {rng.choice(HOMES)}.",
    ])
    want = rng.choice([
        f"{he} wished for {wish} more than for anything else.",
        f"Every morning {pronoun} thought of {wish}.",
        f"All {pronoun} wanted was {wish}.",
    ])
    meet = rng.choice([
        f"{rng.choice(WEATHER)} when {name} met {friend} the {friend_kind}.",
        f"One day {friend} the {friend_kind} came along.",
    ])
    talk = rng.choice([
        f'"Do you know where I can find {wish}?" asked {name}. "Look {place}," said {friend}.',
        f'"I am looking for {wish}," said {name}. "There is one {place}," said {friend}, who {rng.choice(HELPERS)}.',
        f'"Why so sad?" asked {friend}. "I have no {wish.split(" ", 1)[1]}," said {name}. "Then let us look {place}."',
    ])
    deed = rng.choice([
        f"So they went together, and {place} they found {thing}.",
        f"{friend_he} showed the way, and there it was, {place}.",
        f"They looked for a long time, and at last {name} found {thing} {place}.",
    ])
    end = rng.choice([
        f"{name} took it and {use}. {rng.choice(LESSONS)}",
        f"{he} {use}, and {friend} the {friend_kind} was glad. {rng.choice(LESSONS)}",
        f"{he} thanked {friend} and {use}.",
    ])
    return "\n".join([begin, want, meet, talk, deed, end])


def main():
    rng = random.Random(7)
    stories = [story(rng) for _ in range(300)]
    print("\n\n".join(stories))


main()
