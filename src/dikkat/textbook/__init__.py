"""Drop-in modules for the helper library of *Dive into Deep Learning*: the code of its attention chapters, unchanged.

In the place of `from d2l import torch as d2l` stands `from dikkat.textbook import torch as d2l`, likewise `tensorflow`
and `mxnet`. Both generations of the book's names are there, with its signatures and its shapes; the work is done by
this library. What differs from the book is what it gets wrong, and is said where it differs.

`text`, `pictures` and `tools` hold what needs no framework.
"""
