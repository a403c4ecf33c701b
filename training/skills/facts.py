"""Facts of the closed world: each draws question, answer and what a right answer holds."""

import random
from collections.abc import Callable

from training import world
from training.skills.exchanges import Exchange, exchange
from training.wording import an, casual, say

Fact = Callable[[random.Random], tuple[str, str, str]]


def fact(r: random.Random) -> Exchange:
    user, assistant, expected = r.choice(FACTS)(r)
    return exchange(casual(r, user), assistant, expected)


def _capital(r: random.Random) -> tuple[str, str, str]:
    country, (capital, continent) = r.choice(list(world.COUNTRIES.items()))
    at = {"country": country, "capital": capital, "continent": continent}
    Country = country[0].upper() + country[1:]
    kind = r.randrange(6)
    if kind == 4:
        return _is_capital(r, country, capital)
    if kind == 5:
        other, (second, _) = r.choice(list(world.COUNTRIES.items()))
        user = say(
            r,
            "{What are|Tell me|Name} the capitals of $a and $b{?|.|}|{What is|Tell me} the capital of $a and of $b?",
            a=country,
            b=other,
        )
        answer = f"The capital of {country} is {capital}, and the capital of {other} is {second}."
        return user, answer, capital
    if kind < 2:
        user = say(
            r,
            "{What is|What's|Tell me|Name|Do you know|Can you tell me|Please tell me} the capital"
            "{ city|} of $country{?|}|Which city is the capital of $country?|$Country: what is the capital?"
            "|What is $country's capital?|The capital of $country is"
            "|I would like to know the capital of $country.|{The c|C|c}apital of $country{?||:}"
            "|$country{?||:} capital{?|}|{Do you know|Can you tell me} what the capital of $country is?",
            Country=Country,
            **at,
        )
        return user, say(r, "The capital of $country is $capital.", **at), capital
    if kind == 2:
        user = say(
            r,
            "{Which country has the capital $capital?|$capital is the capital of which country?"
            "|What country is $capital the capital of?|Of which country is $capital the capital?}",
            **at,
        )
        return user, say(r, "$capital is the capital of $country.", **at), country
    user = say(
        r,
        "{{Where|On which continent|In which part of the world} is $country?|Which continent is"
        " $country {in|on|part of}?|Where is $capital?}",
        **at,
    )
    place = capital if capital in user else Country
    return user, f"{place} is in {continent}.", continent


def _is_capital(r: random.Random, country: str, capital: str) -> tuple[str, str, str]:
    asked = capital if r.random() < 0.5 else r.choice(list(world.COUNTRIES.values()))[0]
    user = say(
        r,
        "Is $city the capital of $country?|Is the capital of $country $city?",
        city=asked,
        country=country,
    )
    if asked == capital:
        return user, f"Yes, {capital} is the capital of {country}.", "Yes"
    return user, f"No, the capital of {country} is {capital}.", "No"


def _day(r: random.Random) -> tuple[str, str, str]:
    i = r.randrange(7)
    day, after, before = world.DAYS[i], world.DAYS[(i + 1) % 7], world.DAYS[i - 1]
    kind = r.randrange(4)
    if kind == 0:
        return (
            say(
                r,
                "{{What|Which} day {comes|is} after $day?|What day follows $day?|What comes after $day?"
                "|If today is $day, what {day |}is tomorrow?|Tomorrow's day if today is $day?}",
                day=day,
            ),
            f"The day after {day} is {after}.",
            after,
        )
    if kind == 1:
        return (
            say(
                r,
                "{{What|Which} day {comes|is} before $day?|What comes before $day?"
                "|If today is $day, what {day |}was yesterday?}",
                day=day,
            ),
            f"The day before {day} is {before}.",
            before,
        )
    if kind == 2:
        return (
            say(
                r,
                "{How many days {are in|does} a week{ have|}?|How many days are there in a week?}",
            ),
            "A week has 7 days.",
            "7",
        )
    n = r.randrange(7)
    return (
        say(r, "What is the $th day of the week?", th=world.ORDINALS[n]),
        f"The {world.ORDINALS[n]} day of the week is {world.DAYS[n]}.",
        world.DAYS[n],
    )


def _month(r: random.Random) -> tuple[str, str, str]:
    months = list(world.MONTHS)
    i = r.randrange(12)
    month, after, before = months[i], months[(i + 1) % 12], months[i - 1]
    kind = r.randrange(4)
    if kind == 0:
        user = say(
            r,
            "{{What|Which} month {comes|is} after $m?|What comes after $m?|What month follows $m?}",
            m=month,
        )
        return user, f"The month after {month} is {after}.", after
    if kind == 1:
        user = say(r, "{{What|Which} month {comes|is} before $m?|What comes before $m?}", m=month)
        return user, f"The month before {month} is {before}.", before
    if kind == 2:
        user = say(
            r,
            "{How many days {are in|does} $m{ have|}?|How long is $m?|How many days are there in $m?"
            "|Number of days in $m?}",
            m=month,
        )
        return user, f"{month} has {world.MONTHS[month]} days.", str(world.MONTHS[month])
    user = say(
        r,
        "{What is the $th month{ of the year|}?|Which month is the $th{ one|}?"
        "|Name the $th month of the year.}",
        th=world.ORDINALS[i],
    )
    return user, f"The {world.ORDINALS[i]} month of the year is {month}.", month


def _colour(r: random.Random) -> tuple[str, str, str]:
    if r.random() < 0.7:
        thing, colour = r.choice(list(world.COLOUR_OF.items()))
        user = say(
            r,
            "{What|Which} colour {is|has} $t?|What is the colour of $t?|What colour does $t have?"
            "|Tell me the colour of $t.|Do you know what colour $t is?|$T: which colour?",
            t=thing,
            T=thing[0].upper() + thing[1:],
        )
        return user, f"{thing[0].upper() + thing[1:]} is {colour}.", colour
    (a, b), mixed = r.choice(list(world.MIXTURES.items()))
    if r.random() < 0.5:
        a, b = b, a
    user = say(
        r,
        "{{What|Which colour} {do you get|results|comes out} if {you|I|we} mix $a and $b?"
        "|What {is|do you get from} a mix of $a and $b?|$a and $b together are"
        "|What colour do $a and $b make?}",
        a=a,
        b=b,
    )
    return user, f"If you mix {a} and {b}, you get {mixed}.", mixed


def _animal(r: random.Random) -> tuple[str, str, str]:
    animal, (sound, young, kind, legs) = r.choice(list(world.ANIMALS.items()))
    the_animal = an(animal)
    Subject = the_animal.capitalize()
    choice = r.randrange(4)
    if choice == 0:
        user = say(
            r,
            "{What {sound|noise} does $a make?|What does $a do?|How does $a sound?"
            "|Which sound does $a make?}",
            a=the_animal,
        )
        return user, f"{Subject} {sound}.", sound
    if choice == 1:
        user = say(
            r,
            "{What is a {young|baby} $x called?|What do you call a {baby|young} $x?"
            "|What is the young of $a?|Name the young of $a.}",
            x=animal,
            a=the_animal,
        )
        a_young = an(young)
        return user, f"A young {animal} is called {a_young}.", young
    if choice == 2:
        user = say(
            r,
            "{{What|Which} kind of animal is $a?|Is $a a bird or {a mammal|an insect|a reptile}?"
            "|What is $a?}",
            a=the_animal,
        )
        a_kind = an(kind)
        return user, f"{Subject} is {a_kind}.", kind
    user = say(
        r,
        "{How many legs does $a have?|How many legs has $a?|Number of legs of $a?"
        "|On how many legs does $a walk?}",
        a=the_animal,
    )
    return user, f"{Subject} has {legs or 'no'} legs.", f"{legs or 'no'} legs"


def _planet(r: random.Random) -> tuple[str, str, str]:
    kind = r.randrange(4)
    if kind == 0:
        thing, planet = r.choice(list(world.PLANET_FACTS.items()))
        user = say(
            r,
            "{What is|Which one is|What's|Name|Tell me} $thing{ in the solar system|}?",
            thing=thing,
        )
        return user, f"{thing[0].upper() + thing[1:]} is {planet}.", planet
    if kind == 3:
        user = say(
            r, "{How many planets {are there|does the Sun have|do we know}?|Number of planets?}"
        )
        return user, "There are 8 planets.", "8"
    i = r.randrange(8)
    planet, th = world.PLANETS[i], world.ORDINALS[i]
    if kind == 1:
        user = say(r, "{What|Which} is the $th planet {from|after} the Sun?", th=th)
        return user, f"The {th} planet from the Sun is {planet}.", planet
    user = say(r, "{Which|What} number {has|is} the planet $p?|Where does $p stand?", p=planet)
    return user, f"{planet} is the {th} planet from the Sun.", th


def _opposite(r: random.Random) -> tuple[str, str, str]:
    a, b = r.choice(list(world.OPPOSITES.items()))
    if r.random() < 0.5:
        a, b = b, a
    user = say(
        r,
        "{{What is|What's|Tell me|Name} the opposite of {$a|'$a'}{?|}|What is not $a but the opposite?"
        "|Opposite of $a?|Give me the opposite of {the word |}$a.|Which word means the opposite of $a?}",
        a=a,
    )
    return user, f"The opposite of {a} is {b}.", b


def _plural(r: random.Random) -> tuple[str, str, str]:
    one, many = r.choice(list(world.PLURALS.items()))
    user = say(
        r,
        "{{What is|What's|Tell me|Name} the plural of {$one|'$one'}{?|}|One $one, two what?|Plural of $one?"
        "|How do you write more than one $one?|Give me the plural of {the word |}$one.}",
        one=one,
    )
    return user, f"The plural of {one} is {many}.", many


def _alphabet(r: random.Random) -> tuple[str, str, str]:
    i = r.randrange(25)
    a, b = world.ALPHABET[i], world.ALPHABET[i + 1]
    if r.random() < 0.5:
        user = say(
            r, "{{What|Which} letter {comes|is} after $a?|What comes after the letter $a?}", a=a
        )
        return user, f"The letter after {a} is {b}.", f"is {b}"
    user = say(
        r, "{{What|Which} letter {comes|is} before $b?|What comes before the letter $b?}", b=b
    )
    return user, f"The letter before {b} is {a}.", f"is {a}"


def _shape(r: random.Random) -> tuple[str, str, str]:
    shape, sides = r.choice(list(world.SHAPES.items()))
    user = say(
        r, "{How many {sides|corners} does $a have?|How many {sides|corners} has $a?}", a=an(shape)
    )
    what = "sides" if "sides" in user else "corners"
    return user, f"{an(shape).capitalize()} has {sides} {what}.", str(sides)


def _number_word(r: random.Random) -> tuple[str, str, str]:
    n = r.randrange(100)
    word = world.in_words(n)
    if r.random() < 0.5:
        user = say(
            r, "{How do you write $n in words?|Write {the number |}$n in words.|$n in words?}", n=n
        )
        return user, f"{n} in words is {word}.", word
    user = say(r, "{Which number is $w?|Write $w {as a number|in digits}.}", w=word)
    return user, f"{word.capitalize()} is {n}.", f"is {n}"


FACTS: list[Fact] = [
    *[_capital] * 5,
    _day,
    _month,
    _month,
    _colour,
    _animal,
    _animal,
    _planet,
    _opposite,
    _opposite,
    _plural,
    _plural,
    _alphabet,
    _shape,
    _number_word,
]
