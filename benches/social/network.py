"""The rows of a small social network, the same ones for the same seed, and keys to ask for.

Sizes are those of a tiered file system's published benchmark: 100,000 users, 1,000,000 posts, 2,500,000 rows of
friendships (each pair in both directions), 3,000,000 likes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORDS, WORD_LETTERS = 4096, (3, 9)
CONTENT = (200, 600)
# Friends live nearby: of two friends some friends are the same.
NEAR = 60
# Seconds between two rows that are written one after the other.
PACE = 31


@dataclass(frozen=True)
class Size:
    users: int = 100_000

    @property
    def posts(self) -> int:
        return 10 * self.users

    @property
    def friendships(self) -> int:
        return 25 * self.users

    @property
    def likes(self) -> int:
        return 30 * self.users


class Network:
    """All rows, as lines of COPY. What a table needs of another is drawn once."""

    def __init__(self, size: Size, seed: int):
        self.size, self.seed = size, seed
        self.likes = self.draw_likes()
        self.pairs = self.draw_pairs()

    def chance(self, what: str) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def draw_likes(self) -> list[tuple[int, int]]:
        """(user, post), none twice; older posts have more."""
        chance, found = self.chance("likes"), {}
        while len(found) < self.size.likes:
            post = int(chance.random() ** 2 * self.size.posts) + 1
            found[chance.randrange(self.size.users) + 1, post] = None
        return list(found)

    def draw_pairs(self) -> list[tuple[int, int]]:
        chance, found = self.chance("friendships"), {}
        while len(found) < self.size.friendships:
            one = chance.randrange(self.size.users) + 1
            other = (one + chance.randrange(1, NEAR)) % self.size.users + 1
            if one != other:
                found[one, other] = found[other, one] = None
        pairs = list(found)
        chance.shuffle(pairs)
        return pairs

    def tables(self) -> Iterator[tuple[str, Iterator[str]]]:
        yield "users", self.user_rows()
        yield "posts", self.post_rows()
        yield "friendships", (f"{one}\t{other}\t{moment(at)}\n" for at, (one, other) in enumerate(self.pairs))
        yield "likes", (f"{user}\t{post}\t{moment(at)}\n" for at, (user, post) in enumerate(self.likes))
        yield "unrelated", (f"{number}\t{'x' * 900}\n" for number in range(20_000))

    def user_rows(self) -> Iterator[str]:
        chance = self.chance("users")
        for number in range(1, self.size.users + 1):
            yield f"{number}\tuser {number:x}\t{chance.randrange(500)}\t{moment(number)}\n"

    def post_rows(self) -> Iterator[str]:
        chance, counted = self.chance("posts"), [0] * (self.size.posts + 1)
        for _, post in self.likes:
            counted[post] += 1
        words = self.words()
        for number in range(1, self.size.posts + 1):
            text = " ".join(chance.choices(words, k=chance.randrange(*CONTENT) // 7))
            yield f"{number}\t{chance.randrange(self.size.users) + 1}\t{moment(number)}\t{counted[number]}\t{text}\n"

    def words(self) -> list[str]:
        chance = self.chance("words")
        return ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(*WORD_LETTERS)))
                for _ in range(WORDS)]

    def keys(self, query: str) -> Iterator[tuple[int, ...]]:
        """Keys to ask `query` for, one after the other without end; of rows that are there."""
        chance = self.chance(f"keys of {query}")
        for _ in count():
            if query == "post":
                yield (chance.randrange(self.size.posts) + 1,)
            elif query in ("profile", "idx-filter"):
                yield (chance.randrange(self.size.users) + 1,)
            elif query == "who-liked":
                yield (chance.choice(self.likes)[1],)
            elif query == "mutual":
                yield chance.choice(self.pairs)
            else:
                yield (chance.randrange(3, 10),)


def moment(number: int) -> str:
    """When row `number` was written, in a calendar whose months have 28 days."""
    days, seconds = divmod(number * PACE, 86_400)
    years, days = divmod(days, 336)
    months, days = divmod(days, 28)
    minutes, seconds = divmod(seconds, 60)
    return f"{2010 + years}-{months + 1:02}-{days + 1:02} {minutes // 60:02}:{minutes % 60:02}:{seconds:02}+00"
