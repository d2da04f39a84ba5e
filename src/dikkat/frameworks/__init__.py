"""The library's scores and layers of attention in other frameworks: `dikkat.frameworks.keras`.

Every parameter has the name, the layout and the shape that it has in PyTorch, so that one file loads in both.
"""
