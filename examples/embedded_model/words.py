"""Names, things and made-up words that orders are composed of. Knows nothing of how they are asked for.

Made-up words make copying the only way to be right: they cannot be memorised. Held out: names, items and words.
"""

import random

from .split import Split, draw

FIRST_NAMES = tuple(
    """Anna Ben Carla David Elena Felix Greta Hugo Ines Jonas Katja Liam Maria Noah Olga Paul Quentin Rosa Samuel
    Tina Ursula Victor Wanda Xenia Yusuf Zoe Ahmed Aisha Akira Alejandro Amara Amelie Arjun Beatriz Bjorn Camille
    Chen Chloe Dmitri Diego Emma Erik Fatima Fiona Gabriel George Hana Hassan Henry Ingrid Isabel Ivan James Jane
    John Julia Karim Kenji Lars Laura Leila Linh Lucas Lucy Magnus Marco Mary Mei Miguel Mohammed Nadia Nina Oliver
    Omar Pablo Peter Petra Priya Rachel Raj Robert Sara Sofia Stefan Susan Tariq Thomas Valeria Vera Wei William
    Yara Yuki Zainab Alice Bob Charles Daniel Eva Frank Grace Helen Irene Jack Kofi Lena Max Nora Oscar Pia""".split()
)
LAST_NAMES = tuple(
    """Keller Smith Jones Garcia Rossi Dubois Schmidt Novak Kowalski Tanaka Kim Nguyen Patel Singh Okafor Mensah
    Andersen Berg Costa Diaz Eriksen Fischer Gruber Hansen Ibrahim Jensen Kovacs Larsen Martin Moreau Nielsen Olsen
    Petrov Quinn Reyes Silva Torres Ueda Vogel Weber Xu Yilmaz Zhang Adams Baker Bianchi Brown Carter Clark Cohen
    Conti Cruz Davies Evans Fernandez Ferrari Fontaine Foster Gomez Green Haas Hall Harris Hill Hoffmann Horvat Hughes
    Ito Ivanov Jackson Johansson Khan King Klein Kraus Kumar Laurent Lee Lewis Lopez Lindberg Mancini Maier Marino
    Meyer Miller Moore Morgan Murphy Nakamura Nowak O'Brien Okoye Ortiz Parker Perez Popescu Ramos Richter Rivera
    Roberts Romano Russo Sanchez Santos Sato Schneider Scott Shah Sousa Suzuki Svensson Taylor Thomas Thompson Turner
    Virtanen Wagner Walker Wang White Wilson Wolf Wright Yamamoto Young Zimmermann""".split()
)
CITIES = tuple(
    """Lyon Hamburg Porto Milan Turin Seville Valencia Bilbao Munich Cologne Leipzig Dresden Zurich Geneva Basel Graz
    Linz Salzburg Ghent Antwerp Rotterdam Utrecht Aarhus Malmo Bergen Tampere Krakow Gdansk Brno Split Naples Bologna
    Florence Genoa Marseille Bordeaux Lille Nantes Toulouse Leeds Bristol Glasgow Manchester Cork Galway Boston Chicago
    Denver Seattle Toronto Montreal Vancouver Osaka Kyoto Mumbai Chennai Lagos Casablanca Durban Sydney Melbourne Perth
    London Paris Berlin Vienna Prague Madrid Lisbon Rome""".split()
)
ADJECTIVES = tuple(
    """blue red green black white grey yellow small large round square folding wireless portable heavy light vintage
    modern organic striped soft classic compact deluxe electric handmade waterproof foldable silver golden""".split()
)
MATERIALS = tuple(
    """ceramic wooden steel glass cotton leather wool linen plastic copper bamboo paper rubber silk marble canvas
    velvet aluminium cork stone""".split()
)
THINGS = tuple(
    """mug lamp chair table desk bottle bowl plate knife fork spoon pan pot kettle clock mirror pillow blanket towel
    curtain carpet shelf basket box bag backpack wallet belt scarf hat glove jacket shirt sock shoe boot umbrella
    notebook pencil pen ruler stapler folder printer monitor keyboard mouse cable charger speaker headset camera tripod
    drill hammer saw ladder bucket hose shovel tent candle vase frame puzzle kite ball racket bicycle helmet""".split()
)
_ONSETS = "b br c ch cl d dr f fl g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl sn st t th tr v w y z".split()
_VOWELS = "a a a e e e i i o o u ai au ea ei ie oa oo ou y".split()
_CODAS = ["", "", "", *"b ck d f g k l ll m n nd ng nk nt p r rd rk rn s sk ss st t th v x z".split()]


def _syllables(rng: random.Random) -> str:
    count = rng.choice((1, 2, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))


def made_up_word(rng: random.Random, split: Split) -> str:
    """A pronounceable word in lower case that means nothing."""
    return draw(lambda: _syllables(rng), lambda word: f"word|{word}", split)


def person(rng: random.Random, split: Split) -> str:
    """A full name: a real one, a made-up one, or one with both."""
    if rng.random() < 0.5:
        return draw(lambda: f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}", lambda name: f"name|{name}", split)
    first = rng.choice(FIRST_NAMES) if rng.random() < 0.5 else made_up_word(rng, split).capitalize()
    return f"{first} {made_up_word(rng, split).capitalize()}"


def _real_item(rng: random.Random) -> str:
    parts = [rng.choice(THINGS)]
    if rng.random() < 0.75:
        parts.insert(0, rng.choice(MATERIALS))
    if rng.random() < 0.75 or len(parts) == 1:
        parts.insert(0, rng.choice(ADJECTIVES))
    return " ".join(parts)


def item(rng: random.Random, split: Split) -> str:
    """Something to buy: two or three words, some of them made up."""
    if rng.random() < 0.5:
        return draw(lambda: _real_item(rng), lambda name: f"item|{name}", split)
    word = made_up_word(rng, split)
    forms = (
        f"{word} {rng.choice(THINGS)}",
        f"{rng.choice(ADJECTIVES)} {word}",
        f"{rng.choice(MATERIALS)} {word}",
        word,
    )
    return rng.choice(forms)


def city(rng: random.Random, split: Split) -> str:
    """A town: a real one (on either side of the split) or a made-up one."""
    return rng.choice(CITIES) if rng.random() < 0.6 else made_up_word(rng, split).capitalize()
