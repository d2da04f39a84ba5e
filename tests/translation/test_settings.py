import json
import math

import pytest

import kit
from dikkat.translation import Settings, SettingsError


def test_through_json_and_back():
    settings = Settings(score="dot", hidden_size=24, max_minutes=2.5, batch_tokens=97, precision="bfloat16")
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@kit.each(
    ("values", "message"),
    [
        ({"hidden_size": 0}, "hidden_size: got 0; expected a whole number from 1 to 65536"),
        ({"hidden_size": 7}, "hidden_size: got 7; expected an even number"),
        ({"hidden_size": 8.0}, r"hidden_size: got 8\.0; expected a whole number"),
        ({"num_layers": True}, "num_layers: got True; expected a whole number"),
        ({"dropout": 1}, "dropout: got 1; expected a number of at least 0 and less than 1"),
        ({"dropout": math.nan}, "dropout: got nan"),
        ({"learning_rate": 0}, "learning_rate: got 0; expected a number greater than 0"),
        ({"max_minutes": 0}, "max_minutes: got 0; expected a number greater than 0"),
        ({"learning_rate": "fast"}, "learning_rate: got 'fast'; expected a number"),
        ({"score": "sum"}, "score: got 'sum'; expected one of additive, dot, scaled_dot, bilinear, none"),
        ({"tokenizer": None}, "tokenizer: got None; expected one of word, bpe"),
        ({"batch_tokens": 0}, "batch_tokens: got 0; expected a whole number from 1 to 1000000000, or none"),
        ({"batch_tokens": 100.0}, r"batch_tokens: got 100\.0; expected a whole number"),
        ({"batch_size": None}, "batch_size: got None; expected a whole number"),
        ({"precision": "float16"}, "precision: got 'float16'; expected one of float32, bfloat16"),
        ({"bidirectional": 1}, "bidirectional: got 1; expected true or false"),
        ({"seed": -1}, "seed: got -1"),
        ({"attention_dropout": 0.1, "score": "none"}, r"attention_dropout: got 0\.1; expected 0 with score .none."),
        ({"xyzzy": 8}, "xyzzy: unknown setting; there are tokenizer, min_freq"),
        ({"hiden_size": 8}, r"hiden_size: unknown setting; did you mean hidden_size\?"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values, message):
    with pytest.raises(SettingsError, match=message):
        Settings.from_dict(values)


def test_an_odd_size_is_fine_in_one_direction():
    assert Settings(hidden_size=7, bidirectional=False).hidden_size == 7
