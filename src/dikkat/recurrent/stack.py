def check_stack(num_layers: int, dropout: float, **sizes: int) -> None:
    """What holds for the layers of an encoder and of a decoder.

    Raises:
        ValueError: a size below 1, a dropout outside 0 ... 1, or a dropout where there is no second layer to act on.
    """
    for name, size in {**sizes, "num_layers": num_layers}.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout is {dropout}; it is a probability, from 0 to 1")
    if dropout and num_layers == 1:
        raise ValueError(f"dropout is {dropout}, but it acts between layers, of which there is one: use 0 or more")
