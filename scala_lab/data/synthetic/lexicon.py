"""The words of the embedded tasks: a taxonomy of nouns, verbs with their forms, opposites and words of opinion.

A new word is one entry here. The vocabulary of the shipped encoder is the set of words in these tables and in the
sentence frames, so a change requires a new pretraining.
"""

from __future__ import annotations

NOUNS = {
    "animal": "dog cat bird horse fish",
    "dog": "poodle beagle terrier collie",
    "cat": "tabby kitten panther tiger",
    "bird": "sparrow robin crow eagle",
    "horse": "pony mare stallion foal",
    "fish": "salmon trout herring shark",
    "person": "artist scientist athlete official worker relative",
    "artist": "painter singer dancer poet actor",
    "scientist": "chemist biologist physicist geologist",
    "athlete": "runner swimmer boxer skier",
    "official": "mayor judge senator sheriff",
    "worker": "doctor nurse lawyer plumber farmer",
    "relative": "uncle cousin nephew sister",
    "object": "vehicle tool instrument fruit garment dish book vessel",
    "vehicle": "car truck canoe bicycle",
    "tool": "hammer saw drill wrench",
    "instrument": "guitar piano violin flute",
    "fruit": "apple banana cherry peach",
    "garment": "coat shirt hat scarf",
    "dish": "soup stew salad pie",
    "book": "novel atlas diary manual",
    "vessel": "basket bottle bucket jar",
}
"""Hyponyms by hypernym. Branches are disjoint: nothing is both a dog and a cat."""

PLURALS = {"person": "people", "fish": "fish", "salmon": "salmon", "trout": "trout"}

VERB_FORMS = {
    "on things": "get got, buy bought, find found, borrow borrowed, inherit inherited, move moved, push pushed, "
    "drag dragged, lift lifted, damage damaged, break broke broken, scratch scratched, burn burned, sell sold, "
    "lose lost, repair repaired, hide hid hidden, reveal revealed, accept accepted, reject rejected",
    "on living": "assist assisted, rescue rescued, feed fed, cure cured, bother bothered, tease teased, "
    "frighten frightened, insult insulted, chase chased, follow followed, avoid avoided, obey obeyed, defy defied",
    "on any": "notice noticed, spot spotted, watch watched, inspect inspected, admire admired, despise despised, "
    "remember remembered, forget forgot forgotten, protect protected, attack attacked",
    "intransitive": "travel travelled, walk walked, swim swam swum, run ran run, march marched, rest rested, "
    "sleep slept, doze dozed, shout shouted, whisper whispered, laugh laughed, weep wept, arrive arrived, leave left",
    "synonyms": "purchase purchased, discover discovered, wreck wrecked, fix fixed, conceal concealed, "
    "refuse refused, save saved, heal healed, help helped, scare scared, pursue pursued, examine examined, "
    "recall recalled, adore adored, detest detested, guard guarded, assault assaulted, obtain obtained, cry cried, "
    "depart departed",
}
"""Base form, past and, where it differs, participle of verbs, by the objects they take, and of further synonyms."""

VERBS = {
    "get": "buy find borrow inherit",
    "move": "push drag lift",
    "damage": "break scratch burn",
    "assist": "rescue feed cure",
    "bother": "tease frighten insult",
    "notice": "spot watch inspect",
    "travel": "walk swim run march",
    "rest": "sleep doze",
}
"""Hyponyms by hypernym: doing the hyponym is doing the hypernym; siblings say nothing about each other."""

SYNONYMS = {
    "noun": "doctor physician, lawyer attorney, car automobile, coat jacket, object thing, vessel container, "
    "garment costume, person human, animal creature, sheriff constable, bicycle bike, stew casserole, foal colt, "
    "singer vocalist, boxer fighter, farmer grower, diary journal",
    "verb": "buy purchase, find discover, break wreck, repair fix, hide conceal, reject refuse, rescue save, "
    "cure heal, assist help, frighten scare, chase pursue, inspect examine, remember recall, admire adore, "
    "despise detest, protect guard, attack assault, get obtain, weep cry, leave depart",
    "adjective": "large big, small little, quiet silent, noisy loud, rich wealthy, dirty filthy, thin slim",
}
OPPOSITES = {
    "verb": "buy sell, find lose, repair damage, hide reveal, accept reject, follow avoid, obey defy, admire despise, "
    "remember forget, protect attack, shout whisper, laugh weep, arrive leave",
    "adjective": "large small, old young, tall short, quiet noisy, rich poor, heavy light, wet dry, clean dirty, "
    "thin thick, red blue green yellow black white",
}
"""Members of one group exclude each other."""

ADJECTIVES_LIVING = "large small old young tall short quiet noisy rich poor thin"
ADJECTIVES_THINGS = "large small old heavy light wet dry clean dirty thick red blue green yellow black white"

PLACES = {
    "outdoors": "park garden forest field valley harbour",
    "indoors": "kitchen library office attic cellar museum",
}
TIMES = {"on the weekend": "saturday sunday", "on a weekday": "monday tuesday wednesday thursday friday"}

ASPECTS = (
    "plot script story ending opening dialogue acting cast hero villain music score camera editing pacing humour "
    "romance direction scenery soundtrack finale sequel chorus album concert performance poster melody novel chapter "
    "service menu dessert waiter room view staff breakfast"
)

OPINIONS = {
    3: "superb brilliant magnificent stunning glorious wonderful marvellous exquisite flawless thrilling triumphant "
    "dazzling sublime phenomenal masterful breathtaking",
    2: "good charming clever delightful engaging funny moving witty elegant fresh lively graceful touching inventive "
    "warm sharp vivid rewarding",
    1: "decent pleasant nice solid competent likeable neat agreeable watchable cute passable sensible tidy capable",
    -1: "bland uneven slow plain predictable thin flat forgettable odd stale awkward routine muddled loose",
    -2: "bad dull boring clumsy tedious silly lifeless annoying shallow tiresome messy dreary weak pointless stupid "
    "hollow cold lazy",
    -3: "awful terrible dreadful horrible atrocious abysmal disastrous unbearable appalling wretched hideous painful "
    "insulting miserable revolting horrendous",
}
"""Adjectives of opinion by strength."""

OPINION_NOUNS = {
    2: "charm wit warmth energy beauty grace skill passion heart magic",
    -2: "cliches boredom mistakes noise nonsense gloom clutter malice flaws excess",
}
OPINION_VERBS = {
    3: "loved adored treasured",
    2: "enjoyed liked admired appreciated",
    -2: "disliked resented regretted endured",
    -3: "hated loathed despised",
}
"""What a viewer did to an aspect."""

EFFECT_VERBS = {2: "delighted amused impressed charmed pleased", -2: "bored annoyed irritated offended disappointed"}
"""What an aspect did to a viewer."""

INTENSIFIERS = "very really truly utterly incredibly remarkably deeply absolutely"
DOWNTONERS = "slightly somewhat rather fairly mildly vaguely faintly"
