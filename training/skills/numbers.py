"""Sums, differences, products, comparisons, counting."""

import random

from training.skills.exchanges import Exchange, exchange
from training.wording import casual, say
from training.world import in_words


def arithmetic(r: random.Random) -> Exchange:
    return r.choice([addition, addition, large_addition, subtraction, product, comparison])(r)


def addition(r: random.Random) -> Exchange:
    """The addition of two numbers under 100."""
    a, b = r.randrange(100), r.randrange(100)
    return _sum(r, a, b)


def large_addition(r: random.Random) -> Exchange:
    return _sum(r, r.randrange(1000), r.randrange(1000))


def _sum(r: random.Random, a: int, b: int) -> Exchange:
    user = say(
        r,
        "{{What is|What's|How much is|Calculate|Compute|Please add|Tell me} $a{ + |+| plus | and }$b{?|}"
        "|$a{ + | plus |+}$b{?||=}|$a + $b =|{What is the sum of|Add|The sum of} $a and $b{?|}"
        "|{I have $a apples and get $b more. How many {apples |}do I have?}}",
        a=a,
        b=b,
    )
    return exchange(casual(r, user), _result(r, a, "+", b, a + b, user), str(a + b), f"{a} + {b}")


def subtraction(r: random.Random) -> Exchange:
    a, b = r.randrange(100), r.randrange(100)
    if r.random() < 0.8:
        a, b = max(a, b), min(a, b)
    user = say(
        r,
        "{{What is|What's|How much is|Calculate|Compute} $a{ - |-| minus }$b{?|}|$a{ - |-| minus }$b{?|}|$a - $b ="
        "|What is the difference {of|between} $a and $b?|Subtract $b from $a.}"
        + ("|I have $a apples and give away $b. How many are left?" if a >= b else ""),
        a=a,
        b=b,
    )
    return exchange(casual(r, user), _result(r, a, "-", b, a - b, user), str(a - b), f"{a} - {b}")


def product(r: random.Random) -> Exchange:
    a, b = r.randint(0, 12), r.randint(0, 12)
    user = say(
        r,
        "{{What is|What's|How much is|Calculate|Compute} $a{ * |*| x | times }$b{?|}|$a{ * |*| x | times }$b{?|}"
        "|What is the product of $a and $b?|Multiply $a {by|and} $b.}",
        a=a,
        b=b,
    )
    user = casual(r, user)  # the table is learned by heart, so only wordings are kept back
    return exchange(user, _result(r, a, "*", b, a * b, user), str(a * b))


def _result(r: random.Random, a: int, sign: str, b: int, result: int, user: str) -> str:
    if "apples" in user:
        return f"You have {result} apples{' left' if sign == '-' else ''}."
    if user.endswith("="):
        return str(result)
    return f"{a} {sign} {b} = {result}"


def comparison(r: random.Random) -> Exchange:
    a, b = r.sample(range(100), 2)
    which = r.choice(["bigger", "smaller", "larger", "greater"])
    result = min(a, b) if which == "smaller" else max(a, b)
    user = say(
        r,
        "{Which {number |}is $w, $a or $b?|What is $w: $a or $b?|Is $a or $b $w?}",
        w=which,
        a=a,
        b=b,
    )
    return exchange(casual(r, user), f"{result} is {which}.", str(result), f"{which} {a} {b}")


def counting(r: random.Random) -> Exchange:
    if r.random() < 0.25:
        end = r.randint(2, 30)
        user = say(
            r,
            "{Count|Please count|Can you count|Count up} to $n{.|?|}",
            n=r.choice([str(end), in_words(end)]),
        )
        return exchange(casual(r, user), ", ".join(map(str, range(1, end + 1))))
    start, length = r.randint(0, 40), r.randint(3, 25)
    step = r.choice([1, 1, 1, 2, 5, 10])
    down = r.random() < 0.3
    numbers = [start + step * i for i in range(length)]
    if down:
        numbers.reverse()
    user = say(
        r,
        "{Please count|Count|Can you count} $way $a to $b$steps{.|?|}",
        way="down from" if down else "from",
        a=numbers[0],
        b=numbers[-1],
        steps=f" in steps of {step}" if step > 1 else "",
    )
    return exchange(casual(r, user), ", ".join(map(str, numbers)))
