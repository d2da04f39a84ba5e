"""Train a translator on dikkat's phrasebook, score it on held-out pairs, and show what it looks at: about a minute."""

import sys
from pathlib import Path

import torch

from dikkat.show import heatmaps, save, save_page
from dikkat.translation import Search, Settings, alignment_error_rate, evaluate, gold_links, hold_out, train
from dikkat.translation.phrasebook import links, split

SENTENCES = ["go .", "i lost .", "he's calm .", "i'm home ."]
OFFERED = ["I lost.", "He's calm.", "She is tired."]
SETTINGS = Settings(
    min_freq=1,
    embedding_size=128,
    hidden_size=128,
    dropout=0.0,
    learning_rate=5e-3,
    warmup_steps=50,
    batch_size=64,
    epochs=2,
)


def main() -> None:
    """Print the scores and the translations, and write the pictures to ./demo."""
    # A second thread gains a network of this size next to nothing, and loses twentyfold where another program needs
    # the core: the threads wait for each other at every small product.
    torch.set_num_threads(1)
    folder = Path("demo")
    corpus, held_out = split()
    # The first 600 pairs are the short ones. Each of their words is met so rarely that it takes eight times as many.
    short, long = corpus[:600], corpus[600:]
    training, validation = hold_out(long, share=0.02)
    training += 8 * short
    translator = train(SETTINGS, training, validation, tell=lambda line: print(line, file=sys.stderr)).translator
    greedy = Search(beam=1)  # half the time of the default, and nearly as good here
    translations = translator.translate([source for source, _ in held_out], search=greedy)
    scores = evaluate([each.target for each in translations], [target for _, target in held_out])
    print(scores.bleu_line)
    print(f"signature: {scores.bleu_signature}")
    print(scores.chrf_line)
    every = slice(None, None, 5)  # links take longer than translations
    gold = gold_links(links()[every], "phrasebook")
    print(f"alignment error rate: {alignment_error_rate(translator.align(held_out[every]), gold):.3f}")
    examples = translator.translate(SENTENCES, search=greedy)
    for example in examples:
        print(f"{example.source} => {example.target}")
    translator.save(folder / "model")
    figure = heatmaps(
        [each.weights for each in examples],
        queries=[each.target_tokens for each in examples],
        keys=[each.source_tokens for each in examples],
        xlabel="source",
        ylabel="translation",
    )
    save(figure, folder / "heatmap.png")
    save_page(folder / "translations.html", [*examples, *translations[:20]])
    living = folder / "translator.html"
    translator.export_html(living, title="English to French", examples=OFFERED)
    print(f"picture: {folder / 'heatmap.png'}")
    print(f"translations: {folder / 'translations.html'}")
    print(f"model: {folder / 'model'}")
    print(f"Now open {living.resolve().as_uri()} in a browser: it translates as you type, shows where it looks,")
    print("and writes on from what you change.")


if __name__ == "__main__":
    main()
