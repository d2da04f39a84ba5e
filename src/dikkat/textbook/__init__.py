"""Drop-in modules for the helper library of *Dive into Deep Learning*: the code of its attention chapters, unchanged.

`from dikkat.textbook import torch as d2l` (or `tensorflow`, or `mxnet`) replaces `from d2l import torch as d2l`. The
names of edition 0.17 and of the second Chinese edition are in all three modules, those of 1.0 in that for PyTorch, with
their signatures and shapes. Each module says where it differs from the book, and why.

On PyTorch the work is done by this library (`layers`, `learning`); the other two are plain code in their framework's
own operations. `text`, `pictures`, `common` and `tools` need no framework.
"""
