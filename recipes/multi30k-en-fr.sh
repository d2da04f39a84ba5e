#!/bin/sh
# English to French on Multi30k in a quarter of an hour on two cores; docs/benchmarks.md has what it reaches.
# Usage: recipes/multi30k-en-fr.sh FOLDER MODEL
#   FOLDER holds Multi30k's task 1 as published: train, val and test_2016_flickr, each .en.gz and .fr.gz.
#   MODEL is the model folder to make.
set -eu
data=${1:?give the folder of the corpus} model=${2:?give the model folder to make}

dikkat train \
    --source "$data/train.en.gz" --target "$data/train.fr.gz" \
    --valid-source "$data/val.en.gz" --valid-target "$data/val.fr.gz" \
    --tokenizer bpe --vocabulary-size 5000 --dropout 0.3 --label-smoothing 0.1 --warmup-steps 200 \
    --minutes 15 --epochs 40 --patience 5 --output "$model"
dikkat evaluate "$model" --source "$data/val.en.gz" --target "$data/val.fr.gz"
dikkat evaluate "$model" --source "$data/test_2016_flickr.en.gz" --target "$data/test_2016_flickr.fr.gz"
