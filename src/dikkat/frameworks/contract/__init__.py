"""What every framework's attention has in common, in plain Python: checks, names, and the arithmetic that is alike.

A backend brings an `Operations` class of the few operations that differ (`contract.operations`), and its layers.
"""
