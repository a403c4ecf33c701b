"""Repeating to the letter, spelling, turning words around."""

import random
import string

from training import world
from training.skills.exchanges import Exchange, exchange
from training.stories import sentence
from training.wording import say


def code(r: random.Random, length: int) -> str:
    """Something to repeat that nobody could guess."""
    alphabet = r.choice(
        [
            string.ascii_letters + string.digits,
            string.ascii_letters + string.digits,
            string.ascii_uppercase + string.digits,
            string.ascii_uppercase + string.digits,
            string.ascii_lowercase + string.digits,
            string.digits,
            string.hexdigits[:16],
            string.ascii_uppercase,
            string.ascii_lowercase,
            string.ascii_letters + string.digits + "-_.:#@!?%&*+=/()[]{}<>$^~|;,",
        ]
    )
    text = "".join(r.choices(alphabet, k=length))
    if length > 5 and r.random() < 0.25:
        size = r.randint(2, 5)
        text = "-".join(text[i : i + size] for i in range(0, length, size))[:length].strip("-")
    return text


CODE_LENGTHS = [*range(1, 41), *[12] * 20, *range(6, 20)]


def repetition(r: random.Random) -> Exchange:
    """Repeats a code or a sentence, to the letter."""
    choice = r.random()
    if choice < 0.5:
        return repeated_code(r, r.choice(CODE_LENGTHS))
    if choice < 0.65:
        text = words(r)
        what = "{this|the following|the|this} {sentence|text|line}"
    elif choice < 0.82:
        text = " ".join(sentence(r) for _ in range(r.choice([1, 1, 1, 2, 3, 4])))
        what = "{this|the following|the|this} {sentence|text|line}"
    elif choice < 0.93:
        text = " ".join(code(r, r.randint(2, 8)) for _ in range(r.randint(2, 8)))
        what = "{these|the following} {codes|words}"
    else:
        text = r.choice(
            [say(r, "$a $b", a=r.choice(world.WORDS), b=r.choice(world.WORDS)), word(r)]
        )
        what = "{this|the following|the} {word|words|phrase}"
    return _repeated(r, text, what)


def repeated_code(r: random.Random, length: int) -> Exchange:
    what = "{this|the following|my|the} {code|code|string|key|password|token|serial number|id}"
    return _repeated(r, code(r, length), what)


def _repeated(r: random.Random, text: str, what: str) -> Exchange:
    user = say(
        r,
        "{Repeat|Please repeat|Say|Copy|Echo|Write|Please write|Can you repeat|Give me back|Type}"
        " WHAT{ exactly| again| back to me| word for word| letter by letter|, nothing else| please|}"
        "{: $t|: $t|:\n$t| - $t|: '$t'|: \"$t\"}"
        "|{Repeat|Say|Echo} {after me|exactly}{:|} $t"
        "|Repeat: $t|Echo $t|{Say|Write|Print|Repeat} {\"$t\"|'$t'}|$t\n{Repeat that|Repeat the above|Say that again}{ exactly|}."
        "|{Answer|Reply} {only |}with {this|the following}{ text|}: $t".replace("WHAT", what),
        t=text,
    )
    return exchange(user, text, text, user)


def word(r: random.Random) -> str:
    """A word from the list, or made up of syllables."""
    if r.random() < 0.6:
        return r.choice(world.WORDS)
    syllables = (r.choice("bcdfghjklmnprstvwz") + r.choice("aeiou") for _ in range(r.randint(1, 3)))
    return "".join(syllables) + r.choice(["", "", "n", "r", "s", "t", "l"])


def any_word(r: random.Random) -> str:
    """A word from the lists, made up, or letters without sense."""
    choice = r.random()
    if choice < 0.4:
        return r.choice(world.COMMON)
    if choice < 0.8:
        return word(r)
    return "".join(r.choices(string.ascii_lowercase, k=r.randint(2, 8)))


def words(r: random.Random) -> str:
    """That stand together by chance, written as a sentence, mostly."""
    chosen = [any_word(r) for _ in range(r.randint(1, 14))]
    text = " ".join(w.capitalize() if r.random() < 0.1 else w for w in chosen)
    if r.random() < 0.7:
        text = text[0].upper() + text[1:] + r.choice([".", ".", "!", "?", "..."])
    return text


def spelling(r: random.Random) -> Exchange:
    text = any_word(r)
    quoted = r.choice(["$w", "'$w'", "the word $w"]).replace("$w", text)
    kind = r.randrange(5)
    if kind < 2:
        user = say(
            r, "{Spell $q{.|}|How do you spell $q?|Please spell $q.|Can you spell $q?}", q=quoted
        )
        return exchange(user, "-".join(text))
    if kind < 4:
        user = say(
            r,
            "{Reverse $q{.|}|{What is|Write|Say} $q {backwards|in reverse|reversed}{?|}"
            "|Turn $q around.|Spell $q backwards.}",
            q=quoted,
        )
        return exchange(user, text[::-1])
    if r.random() < 0.5:
        user = say(r, "How many letters {does $q have|are in $q}?", q=quoted)
        return exchange(user, f"{text} has {len(text)} letters.", str(len(text)))
    first = r.random() < 0.5
    user = say(r, "What is the $w letter of $q?", w="first" if first else "last", q=quoted)
    letter = text[0] if first else text[-1]
    return exchange(
        user, f"The {'first' if first else 'last'} letter of {text} is {letter}.", f"is {letter}"
    )


def made_up_name(r: random.Random) -> str:
    return word(r).capitalize() if r.random() < 0.4 else r.choice(world.NAMES)
