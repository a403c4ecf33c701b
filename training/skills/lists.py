"""Lists, and answers in JSON."""

import json
import random
from collections.abc import Callable
from typing import Any

from training import world
from training.skills.exchanges import Exchange, exchange
from training.skills.letters import any_word, code, made_up_name, words
from training.wording import casual, listed, say

LISTS = {
    "days of the week": world.DAYS,
    "months of the year": list(world.MONTHS),
    "planets": world.PLANETS,
    "seasons": world.SEASONS,
    "letters of the alphabet": list(world.ALPHABET),
}
KINDS = {
    "animals": [*world.ANIMALS, *world.MORE_ANIMALS],
    "colours": world.COLOURS,
    "fruits": world.FRUITS,
    "tools": world.TOOLS,
    "countries": [c for c in world.COUNTRIES if c[0].isupper()],
    "capitals": [capital for capital, _ in world.COUNTRIES.values()],
    "names": world.NAMES,
    "birds": ["duck", "hen", "goose", "owl", "swan"],
}


def listing(r: random.Random) -> Exchange:
    if r.random() < 0.35:
        what, words = r.choice(list(LISTS.items()))
        user = say(r, "{List|Name|Tell me|What are|Say|Give me} {all |}the $what{.|?|}", what=what)
    else:
        what, pool = r.choice(list(KINDS.items()))
        number = r.randint(2, min(10, len(pool)))
        words = r.sample(pool, number)
        user = say(
            r,
            "{List|Name|Tell me|Give me|I need|Can you name} $n $what{.|?|}",
            n=r.choice([str(number), world.in_words(number)]),
            what=what,
        )
    return exchange(casual(r, user), listed(r, words))


FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "name": made_up_name,
    "age": lambda r: r.randint(1, 99),
    "city": lambda r: r.choice([capital for capital, _ in world.COUNTRIES.values()]),
    "country": lambda r: r.choice(list(world.COUNTRIES)),
    "colour": lambda r: r.choice(world.COLOURS),
    "animal": lambda r: r.choice(list(world.ANIMALS)),
    "score": lambda r: r.randint(0, 1000),
    "price": lambda r: round(r.uniform(0, 100), 2),
    "active": lambda r: r.choice([True, False]),
    "id": lambda r: code(r, 8).replace('"', ""),
    "fruit": lambda r: r.choice(world.FRUITS),
    "day": lambda r: r.choice(world.DAYS),
    "tags": lambda r: r.sample(world.WORDS, r.randint(1, 4)),
    "note": lambda r: words(r),
    "title": lambda r: f"{any_word(r).capitalize()} {any_word(r)}",
    "pet": made_up_name,
    "word": any_word,
}


def json_answer(r: random.Random) -> Exchange:
    kind = r.choice([0, 0, 0, 0, 2, 3, 4, 5])
    as_json = say(
        r, "{{Answer|Reply} {in|as|with} JSON|As JSON|In JSON|Give {me |}the answer {as|in} JSON}"
    )
    if kind == 0:
        names = r.sample(list(FIELDS), r.randint(1, 5))
        value: Any = {name: FIELDS[name](r) for name in names}
        fields = [f"{name} {_plain(value[name])}" for name in names]
        wanted = ", ".join(fields[:-1]) + (" and " if len(fields) > 1 else "") + fields[-1]
        user = say(
            r,
            "{{Give me|Write|Make|Create|Return|I need} {a JSON object|JSON|a JSON document} with $w{.|}"
            "|{Put this into|Convert this to|Turn this into|Write as} {JSON|a JSON object}: $w"
            "|JSON with $w}",
            w=wanted,
        )
    elif kind == 5:
        names = r.sample(list(FIELDS), r.randint(1, 4))
        value = {name: FIELDS[name](r) for name in names}
        keys = ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
        user = say(
            r,
            "{Give me|Write|Make|Create|Return|Invent|Show me} {a JSON object|JSON|some JSON|an example in JSON}"
            " with {the |}{keys|fields} $keys{.|}|{A JSON|JSON} {example|object} with the {keys|fields} $keys",
            keys=keys,
        )
    elif kind == 2:
        country, (capital, continent) = r.choice(list(world.COUNTRIES.items()))
        value = {"country": country, "capital": capital}
        if r.random() < 0.3:
            value["continent"] = continent
            user = f"What are the capital and the continent of {country}? {as_json}."
        else:
            user = say(
                r,
                "What is the capital of $c? $a.|$a: what is the capital of $c?",
                c=country,
                a=as_json,
            )
    elif kind == 3:
        what, pool = r.choice(list(KINDS.items()))
        number = r.randint(2, min(8, len(pool)))
        value = r.sample(pool, number)
        user = say(
            r,
            "{{List|Name|Give me} $n $what {as|in} {a JSON array|a JSON list|JSON}.|{A JSON array|JSON} of $n $what}",
            n=r.choice([str(number), world.in_words(number)]),
            what=what,
        )
    else:
        a, b = r.randrange(100), r.randrange(100)
        value = {"a": a, "b": b, "sum": a + b}
        user = say(r, "{What is $a + $b? $j.|$j: $a plus $b}", a=a, b=b, j=as_json)
    return exchange(user, json.dumps(value, ensure_ascii=False))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and len(value) % 2 else json.dumps(value)
