"""Short stories: one hero, one wish, one obstacle, one helper, all the way through."""

import random

from training.wording import an, say
from training.world import ANIMALS, COLOURS, MORE_ANIMALS, NAMES

HEROES = [*ANIMALS, *MORE_ANIMALS, "dragon", "robot", "boy", "girl", "king", "queen", "sailor"]
HEROES += ["baker", "gardener", "giant", "princess", "knight", "wizard", "train", "cloud", "star"]
TRAITS = ["little", "brave", "lazy", "clever", "lonely", "curious", "shy", "kind", "old", "hungry"]
PLACES = ["in a deep forest", "by the sea", "on a high mountain", "in a quiet village"]
PLACES += [
    "at the edge of a big city",
    "on a small island",
    "beside a slow river",
    "in an old castle",
]
PLACES += ["behind the garden wall", "under the old bridge", "in a warm valley"]
THINGS = ["key", "lantern", "bell", "kite", "book", "ring", "map", "drum", "boat", "hat", "clock"]
THINGS += ["apple", "flute", "stone", "feather"]
SECRETS = ["could sing", "shone in the dark", "granted one wish", "knew the way home"]
SECRETS += ["made everybody laugh", "never got cold", "told the truth", "opened every door"]
OBSTACLES = {
    "a storm came and washed the path away": "waited until the storm was over and built a new path",
    "the bridge was broken": "put a long branch across the water",
    "a thick fog hid everything": "followed the sound of the water",
    "the gate was locked": "climbed over the wall where the ivy grew",
    "the night fell and it became very dark": "lit a small fire and sang until morning",
    "a deep river was in the way": "made a raft out of old wood",
    "snow covered all the tracks": "asked the birds to look from above",
}
LESSONS = ["a friend is worth more than gold", "courage is being afraid and going on"]
LESSONS += ["small steps lead far", "who shares has twice as much", "it is never too late to try"]
LESSONS += ["patience opens every door", "a kind word costs nothing"]


SHE = """Alice Astrid Dora Fiona Grace Ines Iris Kate Lily Lucy Ruth Yuki Zoe""".split()


def story(r: random.Random, hero: str | None = None, name: str | None = None) -> str:
    """Five to ten sentences, about 60 to 150 words. It begins with `Once upon a time`, mostly."""
    hero = hero or r.choice(HEROES)
    name = name or r.choice(NAMES)
    she = "she" if name in SHE or name.endswith("a") else "he"
    helper = r.choice([animal for animal in (*ANIMALS, *MORE_ANIMALS) if animal != hero])
    colour = r.choice(COLOURS)
    obstacle, way = r.choice(list(OBSTACLES.items()))
    slots = {
        "a_trait": an(r.choice(TRAITS)),
        "hero": hero,
        "name": name,
        "place": r.choice(PLACES),
        "She": she.capitalize(),
        "she": she,
        "her": "her" if she == "she" else "his",
        "them": "her" if she == "she" else "him",
        "thing": r.choice(THINGS),
        "colour": colour,
        "a_colour": an(colour),
        "secret": r.choice(SECRETS),
        "obstacle": obstacle,
        "way": way,
        "helper": helper,
        "a_helper": an(helper),
        "friend": r.choice([other for other in NAMES if other != name]),
        "lesson": r.choice(LESSONS),
    }
    parts = [
        "{Once upon a time|Once upon a time|Once upon a time|Long ago|One day},"
        " {there was|there lived} $a_trait $hero {named|called} $name{, who lived $place| $place}.",
        " {Every day|Every morning|Each evening} $name {dreamed of|thought of|talked about}"
        " $a_colour $thing that $secret.",
    ]
    if r.random() < 0.5:
        parts.append(
            " {Nobody|No one} had ever seen it, but $name {was sure|knew} that it {was real|existed}."
        )
    parts.append(
        " {One morning|One day|At last} $she {packed $her bag|took a deep breath|said goodbye}"
        " and {went to look for|set out to find} the $thing."
    )
    parts.append(" {But soon|On the second day|Halfway there,} $obstacle.")
    if r.random() < 0.8:
        parts.append(
            " {Then|Just then|Luckily,} $a_helper {came by|appeared|woke up}. The $helper's name was"
            ' $friend, and $friend {said|whispered}: "{Let us go together|I will help you|Do not give up}."'
        )
        parts.append(" {Together they|So they|The two of them} $way.")
        parts.append(
            " {In the end|Finally|At sunset} they found the $colour $thing"
            " {under an old tree|in a hollow log|on top of a hill|behind a waterfall},"
            " and {it really $secret|it was more beautiful than in any dream}."
        )
        if r.random() < 0.5:
            parts.append(
                " $name {shared it with $friend|gave half of the joy to $friend|hugged $friend},"
                " and they {became|were} {best friends|friends for ever}."
            )
    else:
        parts.append(" $name {thought for a while|did not give up} and $way.")
        parts.append(
            " {In the end|Finally} $she found the $colour $thing, and {it really $secret|$she was happy}."
        )
    if r.random() < 0.6:
        parts.append(
            " {From that day on|Since then|That day} $name {knew|understood} that $lesson."
        )
    parts.append(
        r.choice(
            [
                "",
                " {The end.|And that is the end of the story.}",
                " And $she {lived|slept} happily ever after.",
            ]
        )
    )
    return say(r, "".join(parts), **slots)


def sentence(r: random.Random) -> str:
    """One sentence that means something."""
    return say(
        r,
        "{The|My} $trait $hero {saw|found|lost|drew|bought|painted|hid} {the|$n} $colour $thing"
        " {$place|yesterday|on $n March|at $n o'clock|in the morning}{, and $name laughed|,"
        " but $name {did not care|said nothing}|}{.|!|.}",
        trait=r.choice(TRAITS),
        hero=r.choice(HEROES),
        colour=r.choice(COLOURS),
        thing=r.choice(THINGS),
        place=r.choice(PLACES),
        name=r.choice(NAMES),
        n=r.randint(2, 31),
    )
