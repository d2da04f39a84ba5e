"""Drop-in modules for the helper library of *Dive into Deep Learning*: the code of its attention chapters, unchanged.

In the place of `from d2l import torch as d2l` stands `from dikkat.textbook import torch as d2l`, likewise `tensorflow`
and `mxnet`. The names of edition 0.17 and of the second Chinese edition are in all three, those of 1.0 on PyTorch,
with their signatures and shapes. What differs from the book is what it gets wrong, and is said where it differs.

On PyTorch the work is done by this library (`layers`, `learning`); the other two are plain code in their framework's
own operations. `text`, `pictures`, `common` and `tools` need no framework.
"""
