"""The same attention in other frameworks: `dikkat.frameworks.keras` and `dikkat.frameworks.mxnet`.

Both mirror the PyTorch library's scores and layers, and share its weights: every parameter has the name, the layout and
the shape that it has in PyTorch, so that one file loads everywhere.
"""
