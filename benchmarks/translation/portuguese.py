"""Train a translator of 220 generated Portuguese pairs with default options, and count exact translations.

    python -m benchmarks.translation.portuguese

Times, dates and prices are written in another way than in English; 150 held-out sentences recombine learned words with
new names, times, dates and prices.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.kit.report import write
from dikkat.translation import settings_for, train

NAMES = ["João", "Antônio", "Maria", "Inês", "Conceição", "Luís", "Rita", "Zé", "Ana", "Paulo"]
VERBS = {"left": "saiu", "arrived": "chegou", "called": "ligou", "woke up": "acordou"}
THINGS = {"bread": "O pão", "table": "A mesa", "book": "O livro", "house": "A casa", "key": "A chave", "cup": "O copo"}
SAYINGS = {"Good morning": "Bom dia", "I am tired": "Estou cansado", "It is late": "É tarde", "Come here": "Vem cá"}
PLACES = {"at home": "em casa", "in Lisbon": "em Lisboa", "at school": "na escola", "in the garden": "no jardim"}


def pair(draw: random.Random) -> tuple[str, str]:
    """Return a sentence and its translation."""
    name, verb, thing, saying, place = map(draw.choice, (NAMES, list(VERBS), list(THINGS), list(SAYINGS), list(PLACES)))
    hour, minute, day, month = draw.randint(0, 23), draw.randint(0, 59), draw.randint(1, 28), draw.randint(1, 12)
    year, reais, cents = draw.randint(1990, 2030), draw.randint(1, 9_999), draw.randint(0, 99)
    time, time_pt = f"{hour}:{minute:02}", f"{hour}h{minute:02}"
    date, date_pt = f"{year}-{month:02}-{day:02}", f"{day:02}/{month:02}/{year}"
    price, price_pt = f"R$ {reais:,}.{cents:02}", f"R$ {reais:,}".replace(",", ".") + f",{cents:02}"
    frames = [
        (f"{name} {verb} at {time}.", f"{name} {VERBS[verb]} às {time_pt}."),
        (f"{name} {verb} on {date}.", f"{name} {VERBS[verb]} em {date_pt}."),
        (f"{name} {verb} on {date} at {time}.", f"{name} {VERBS[verb]} em {date_pt}, às {time_pt}."),
        (f"The {thing} costs {price}.", f"{THINGS[thing]} custa {price_pt}."),
        (f"How much is the {thing}, {name}?", f"Quanto custa {THINGS[thing][0].lower()}{THINGS[thing][1:]}, {name}?"),
        (f"Where is {name}?", f"Onde está {name}?"),
        (f"Is {name} {place}?", f"{name} está {PLACES[place]}?"),
        (f"{name} said: “{saying}.”", f"{name} disse: « {SAYINGS[saying]}. »"),
        (f"When {verb} {name}?", f"Quando {VERBS[verb]} {name}?"),
        (f"{name} paid {price} on {date}.", f"{name} pagou {price_pt} em {date_pt}."),
    ]
    return draw.choice(frames)


def corpora(seed: int = 0) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return 220 training pairs and 150 held-out pairs."""
    draw, pairs = random.Random(seed), dict[str, str]()
    while len(pairs) < 370:
        pairs.update([pair(draw)])
    return list(pairs.items())[:220], list(pairs.items())[220:]


def evaluate_by_command(folder: Path, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Return the scores that `dikkat evaluate` prints for the model in `folder`."""
    corpus = folder / "pairs.tsv"
    corpus.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    command = [sys.executable, "-m", "dikkat", "evaluate", str(folder / "model"), "--corpus", str(corpus), "--json"]
    scores = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {name: scores[name] for name in ("sentences", "bleu", "exact_matches", "lost_numbers", "invented_numbers")}


def main() -> None:
    training, held_out = corpora()
    validation, training_pairs = training[::20], [item for index, item in enumerate(training) if index % 20]
    translator = train(settings_for(training_pairs), training_pairs, validation, progress=False).translator
    results: dict[str, object] = {"what": "Portuguese pairs, no option given", "pairs": len(training_pairs)}
    with tempfile.TemporaryDirectory() as folder:
        translator.save(Path(folder, "model"))
        for name, pairs in (("training", training), ("held out", held_out)):
            translations = [item.target for item in translator.translate([source for source, _ in pairs])]
            wrong = [(*pair_, text) for pair_, text in zip(pairs, translations, strict=True) if text != pair_[1]]
            results[name] = f"{len(pairs) - len(wrong)} of {len(pairs)}"
            results[f"dikkat evaluate, {name}"] = evaluate_by_command(Path(folder), pairs)
            print(name, results[name], results[f"dikkat evaluate, {name}"])
            for source, target, translation in wrong:
                print(f"  {source} | {target} | {translation}")
    print(write("portuguese", results, "tokenizers"))


if __name__ == "__main__":
    main()
