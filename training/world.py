"""The closed world that the model knows: plain tables."""

# country: (capital, continent)
COUNTRIES = {
    "France": ("Paris", "Europe"),
    "Germany": ("Berlin", "Europe"),
    "Italy": ("Rome", "Europe"),
    "Spain": ("Madrid", "Europe"),
    "Portugal": ("Lisbon", "Europe"),
    "Ireland": ("Dublin", "Europe"),
    "England": ("London", "Europe"),
    "Scotland": ("Edinburgh", "Europe"),
    "Norway": ("Oslo", "Europe"),
    "Sweden": ("Stockholm", "Europe"),
    "Finland": ("Helsinki", "Europe"),
    "Denmark": ("Copenhagen", "Europe"),
    "Iceland": ("Reykjavik", "Europe"),
    "Poland": ("Warsaw", "Europe"),
    "Austria": ("Vienna", "Europe"),
    "Switzerland": ("Bern", "Europe"),
    "Belgium": ("Brussels", "Europe"),
    "Greece": ("Athens", "Europe"),
    "Hungary": ("Budapest", "Europe"),
    "Romania": ("Bucharest", "Europe"),
    "Bulgaria": ("Sofia", "Europe"),
    "Croatia": ("Zagreb", "Europe"),
    "Serbia": ("Belgrade", "Europe"),
    "Ukraine": ("Kyiv", "Europe"),
    "Russia": ("Moscow", "Europe"),
    "Estonia": ("Tallinn", "Europe"),
    "Latvia": ("Riga", "Europe"),
    "Lithuania": ("Vilnius", "Europe"),
    "China": ("Beijing", "Asia"),
    "Japan": ("Tokyo", "Asia"),
    "India": ("New Delhi", "Asia"),
    "Thailand": ("Bangkok", "Asia"),
    "Vietnam": ("Hanoi", "Asia"),
    "Indonesia": ("Jakarta", "Asia"),
    "Nepal": ("Kathmandu", "Asia"),
    "Mongolia": ("Ulaanbaatar", "Asia"),
    "Iran": ("Tehran", "Asia"),
    "Iraq": ("Baghdad", "Asia"),
    "Turkey": ("Ankara", "Asia"),
    "Jordan": ("Amman", "Asia"),
    "Lebanon": ("Beirut", "Asia"),
    "South Korea": ("Seoul", "Asia"),
    "Egypt": ("Cairo", "Africa"),
    "Kenya": ("Nairobi", "Africa"),
    "Morocco": ("Rabat", "Africa"),
    "Tunisia": ("Tunis", "Africa"),
    "Algeria": ("Algiers", "Africa"),
    "Ghana": ("Accra", "Africa"),
    "Senegal": ("Dakar", "Africa"),
    "Ethiopia": ("Addis Ababa", "Africa"),
    "Nigeria": ("Abuja", "Africa"),
    "Uganda": ("Kampala", "Africa"),
    "Canada": ("Ottawa", "North America"),
    "Mexico": ("Mexico City", "North America"),
    "Cuba": ("Havana", "North America"),
    "the United States": ("Washington", "North America"),
    "Brazil": ("Brasilia", "South America"),
    "Argentina": ("Buenos Aires", "South America"),
    "Chile": ("Santiago", "South America"),
    "Peru": ("Lima", "South America"),
    "Colombia": ("Bogota", "South America"),
    "Uruguay": ("Montevideo", "South America"),
    "Australia": ("Canberra", "Oceania"),
    "New Zealand": ("Wellington", "Oceania"),
}

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

# month: days in it
MONTHS = {
    "January": 31,
    "February": 28,
    "March": 31,
    "April": 30,
    "May": 31,
    "June": 30,
    "July": 31,
    "August": 31,
    "September": 30,
    "October": 31,
    "November": 30,
    "December": 31,
}
SEASONS = ["spring", "summer", "autumn", "winter"]

COLOURS = ["red", "blue", "green", "yellow", "orange", "purple", "white", "black", "brown", "grey"]
# what has which colour
COLOUR_OF = {
    "grass": "green",
    "the sky": "blue",
    "snow": "white",
    "blood": "red",
    "a lemon": "yellow",
    "a banana": "yellow",
    "coal": "black",
    "a carrot": "orange",
    "milk": "white",
    "an elephant": "grey",
    "chocolate": "brown",
    "a plum": "purple",
    "a strawberry": "red",
    "the sun": "yellow",
    "a frog": "green",
    "a raven": "black",
    "a tomato": "red",
    "the sea": "blue",
}
MIXTURES = {
    ("blue", "yellow"): "green",
    ("red", "yellow"): "orange",
    ("red", "blue"): "purple",
    ("black", "white"): "grey",
    ("red", "green"): "brown",
}

# animal: (sound, its young, kind, legs)
ANIMALS = {
    "dog": ("barks", "puppy", "mammal", 4),
    "cat": ("meows", "kitten", "mammal", 4),
    "cow": ("moos", "calf", "mammal", 4),
    "horse": ("neighs", "foal", "mammal", 4),
    "sheep": ("bleats", "lamb", "mammal", 4),
    "pig": ("grunts", "piglet", "mammal", 4),
    "lion": ("roars", "cub", "mammal", 4),
    "wolf": ("howls", "pup", "mammal", 4),
    "goat": ("bleats", "kid", "mammal", 4),
    "bear": ("growls", "cub", "mammal", 4),
    "duck": ("quacks", "duckling", "bird", 2),
    "hen": ("clucks", "chick", "bird", 2),
    "goose": ("honks", "gosling", "bird", 2),
    "owl": ("hoots", "owlet", "bird", 2),
    "swan": ("hisses", "cygnet", "bird", 2),
    "frog": ("croaks", "tadpole", "amphibian", 4),
    "bee": ("buzzes", "larva", "insect", 6),
    "butterfly": ("makes no sound", "caterpillar", "insect", 6),
    "snake": ("hisses", "snakelet", "reptile", 0),
    "mouse": ("squeaks", "pup", "mammal", 4),
    "spider": ("makes no sound", "spiderling", "arachnid", 8),
    "ant": ("makes no sound", "larva", "insect", 6),
    "elephant": ("trumpets", "calf", "mammal", 4),
    "donkey": ("brays", "foal", "mammal", 4),
    "eagle": ("screams", "eaglet", "bird", 2),
    "shark": ("makes no sound", "pup", "fish", 0),
    "whale": ("sings", "calf", "mammal", 0),
}
MORE_ANIMALS = ["fox", "rabbit", "hedgehog", "squirrel", "tiger", "deer", "otter", "badger"]

PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
PLANET_FACTS = {
    "the largest planet": "Jupiter",
    "the smallest planet": "Mercury",
    "the red planet": "Mars",
    "the hottest planet": "Venus",
    "the planet with the brightest rings": "Saturn",
    "the planet closest to the Sun": "Mercury",
    "the planet farthest from the Sun": "Neptune",
    "the planet that we live on": "Earth",
}

OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "old": "young",
    "happy": "sad",
    "light": "dark",
    "full": "empty",
    "open": "closed",
    "high": "low",
    "early": "late",
    "rich": "poor",
    "strong": "weak",
    "loud": "quiet",
    "wet": "dry",
    "hard": "soft",
    "long": "short",
    "thick": "thin",
    "clean": "dirty",
    "good": "bad",
    "true": "false",
    "left": "right",
    "up": "down",
    "day": "night",
    "war": "peace",
    "first": "last",
    "inside": "outside",
    "easy": "difficult",
    "cheap": "expensive",
    "near": "far",
    "brave": "cowardly",
    "sweet": "sour",
}

PLURALS = {
    "cat": "cats",
    "dog": "dogs",
    "child": "children",
    "mouse": "mice",
    "foot": "feet",
    "tooth": "teeth",
    "goose": "geese",
    "man": "men",
    "woman": "women",
    "sheep": "sheep",
    "fish": "fish",
    "leaf": "leaves",
    "wolf": "wolves",
    "knife": "knives",
    "city": "cities",
    "baby": "babies",
    "box": "boxes",
    "fox": "foxes",
    "bus": "buses",
    "potato": "potatoes",
    "book": "books",
    "house": "houses",
    "person": "people",
    "ox": "oxen",
    "apple": "apples",
    "story": "stories",
    "lady": "ladies",
    "tree": "trees",
    "berry": "berries",
    "hero": "heroes",
}

FRUITS = ["apple", "banana", "cherry", "grape", "lemon", "orange", "pear", "plum", "peach", "fig"]
TOOLS = ["hammer", "saw", "drill", "file", "pliers", "spade", "rake", "axe"]
SHAPES = {"triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
ORDINALS += ["ninth", "tenth", "eleventh", "twelfth"]

_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
_SMALL += " fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    """From 0 to 99."""
    if number < 20:
        return _SMALL.split()[number]
    tens = _TENS[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens}-{_SMALL.split()[number % 10]}"


NAMES = """Ada Alan Alice Amir Ana Anders Anna Astrid Aya Ben Bella Boris Carla Carlos Chen Clara
Daniel Dara David Diego Dora Ella Elif Emil Emma Eric Eva Fatima Felix Fiona Finn Frida George
Grace Hana Hans Henry Ida Igor Ines Iris Ivan Jack Jana Jonas Julia Kai Karim Kate Kenji Lara Leo
Lena Lily Linus Lucas Lucy Maja Marco Maria Mark Mateo Max Maya Mia Milan Mina Mira Mohammed Nadia
Nia Nina Noah Nora Oliver Olga Omar Oscar Otto Paul Pavel Petra Priya Rosa Ravi Robert Ruth Sam
Sara Selma Simon Sonja Sven Tara Theo Tim Tom Uma Vera Viktor Wei Yara Yuki Zoe Zara""".split()

# Outside the closed world: for things of which the model says that it doesn't know them.
UNKNOWN_PLACES = """Atlantis Bohemia Cambodia Fiji Gondor Jamaica Laos Malta Narnia Oman Panama Qatar
Rwanda Samoa Tonga Utopia Wakanda Yemen Zambia Bolivia Belize Angola Avalon Burundi Bhutan""".split()
UNKNOWN_TOPICS = """the stock market|quantum physics|the history of Rome|medieval law|brain surgery
the last election|tax law|football results|the weather|rocket engines|modern art|jazz music
wine making|chess openings|the price of gold|deep sea fishing|video games|the newest phones
the film that came out yesterday|organic chemistry|knitting patterns|car repair|poker|ballet
ancient Greek poetry|the human heart|volcanoes|my neighbours|today's news|bread baking""".replace(
    "\n", "|"
).split("|")

WORDS = """cat dog sun moon tree fish bird book milk rain snow wind star road ship song blue red gold
apple bread chair cloud dream earth fire glass green grass heart horse house light lion mouse music
night ocean paper piano plant queen river robot salt sand stone storm sugar table tiger train water
wheel world yellow window garden winter summer spring bridge castle forest island kitten letter
market needle orange pencil rabbit silver ticket turtle violet basket candle dinner flower hammer
lamp door leaf ring rope sock coat boat frog king knot lake nest nose park plum seed shoe soup
tent tower train wolf wood yarn zebra""".split()

# Everyday words, to be repeated, asked about and spelled.
COMMON = """about above across after again air all alone along always among and another answer any are
around ask away back bad be beautiful because become before begin behind believe below best better
between big body both box boy break bring brother brown build busy but buy by call came can car care
carry catch change child city class clean clear close cold come cook cool corner could country cover
cross cry cut dance dark daughter dear decide deep did different do doctor does done down draw dress
drink drive drop dry during each early earth east easy eat edge eight either end enough even evening
ever every eye face fact fall family far farm fast father feel few field fight fill find fine finger
finish first five floor fly follow food foot for forget four free friend from front full fun game gave
get girl give go good great ground group grow had hair half hand happen hard has hat have head hear
help her here high hill him his hold home hope hot hour how hundred hurry idea if important inside into
is it job join jump jumps just keep kind kitchen know land large last late laugh lazy learn leave left
less let life like line listen little live long look lost loud love low machine make man many may me
mean meet middle might mind minute miss money month more morning most mother mountain move much must my
name near need never new next nice nine no north not nothing now number of off often oh old on once one
only open or other our out outside over own page part party past pay people perhaps person picture
piece place plan play please point pretty problem pull push put question quick quiet quite race reach
read ready real really remember rest rich ride right rise room round run same sat save saw say school
second see seem send sentence set seven shall she short should show side simple since sing sister sit
six sleep slow small smile so soft some someone something sometimes soon sound south space speak spend
stand start stay step still stop story street strong such sudden sure surprise swim take talk tall tell
ten than thank that the their them then there these they thing think third this those thought thousand
three through time tired to today together told tomorrow too top town travel true try turn twelve two
uncle under until up upon us use usual very visit voice wait walk wall want warm was wash watch way we
weak wear week well went were west what when where which while whisper white who whole why wide wife
wild will wish with without woman wonder word work would write wrong year yes yesterday yet you young
your banana tomato potato butter cheese coffee computer keyboard python internet server batch thread
queue token model pizza football guitar elephant giraffe penguin hello welcome goodbye""".split()
ACTIVITIES = """cook|swim|dance|sing|fly|write code|write a poem|draw a picture|translate|see images
browse the internet|play chess|drive a car|send an email|set an alarm|read my files|hear me|learn
speak French|speak German|write an essay|do my homework|book a flight|play music""".replace(
    "\n", "|"
).split("|")
LIKED = """pizza|cats|dogs|music|football|reading|the sea|winter|summer|coffee|tea|cake|flowers|trains
rain|snow|books|chocolate|long walks|mountains|my job|this game|your answer|Switchyard""".replace(
    "\n", "|"
).split("|")
