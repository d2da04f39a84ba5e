"""The same attention in another framework: `dikkat.frameworks.keras`.

It mirrors the PyTorch library's scores and layers, and shares its weights: every parameter has the name, the layout and
the shape that it has in PyTorch, so that one file loads everywhere.
"""
