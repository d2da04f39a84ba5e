"""Drop-in modules for the helper library of *Dive into Deep Learning*: the code of its attention chapters, unchanged.

`from dikkat.textbook import torch as d2l` (or `tensorflow`, or `mxnet`) replaces `from d2l import torch as d2l`. All
three modules have the names of edition 0.17 and of the second Chinese edition, with their signatures and shapes. The
module for PyTorch also has those of edition 1.0. `dikkat.textbook.torch` lists the corrections of the book.

The PyTorch module uses dikkat's attention (`layers`, `learning`); the other two use only their framework. `text`,
`pictures`, `common` and `tools` need no framework.
"""
