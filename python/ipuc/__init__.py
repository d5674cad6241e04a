"""Compile ONNX models into execution-ordered `.ipu` files, and run them within a memory budget.

>>> import ipuc, numpy
>>> path = ipuc.compile("digits.onnx")
>>> session = ipuc.open(path).session()
>>> session.run({"image": numpy.zeros((1, 784), numpy.float32)})
{'scores': array([[...]], dtype=float32)}
"""

import os
from collections.abc import Callable, Mapping, Sequence

from ipuc import _native
from ipuc._native import IpucError, Model, Session, TextModel

__all__ = ["IpucError", "Model", "Session", "TextModel", "compile", "generate", "open"]


def compile(
    models: str | os.PathLike | Mapping[str, str | os.PathLike],
    output: str | os.PathLike | None = None,
    *,
    states: Sequence[str] = (),
    dimensions: Mapping[str, int | tuple[int, int]] | None = None,
    weights: str | None = None,
    size: int | None = None,
    max_error: float | None = None,
    keep: Sequence[str] = (),
    weights_for: Mapping[str, str] | None = None,
    activations: str | None = None,
    cache: str | None = None,
    unfused: bool = False,
    memory: int | None = None,
    external_data_roots: Sequence[str | os.PathLike] = (),
) -> str:
    """Compile a model (an `.onnx` file or the folder of a language model), or several by the names of their entries.

    Gives the path of the `.ipu` file: `output`, else the first model's name with `.ipu`. The options are those of
    `ipuc compile --help`; `memory` and `size` are in bytes.
    """
    named = dict(models) if isinstance(models, Mapping) else {"main": models}
    if not named:
        raise ValueError("there is no model to compile")
    if output is None:
        output = os.path.splitext(os.fspath(next(iter(named.values()))))[0] + ".ipu"
    path = _native.compile(
        list(named.items()),
        output,
        states=list(states),
        dimensions=dict(dimensions or {}),
        weights=weights,
        size=size,
        max_error=max_error,
        keep=list(keep),
        weights_for=list((weights_for or {}).items()),
        activations=activations,
        cache=cache,
        unfused=unfused,
        memory=memory,
        external_data_roots=list(external_data_roots),
    )
    return os.fspath(path)


def open(
    path: str | os.PathLike,
    *,
    memory: int | None = None,
    context: int | None = None,
    spill: str | os.PathLike | None = None,
    shared: bool = False,
) -> Model:
    """Open an `.ipu` file.

    `memory` bounds the bytes of weights, activations, state, inputs and outputs; weights that do not fit are streamed
    from the file. `context` keeps room for so many positions of growing state, `spill` is the folder for state that does
    not fit either, and `shared` maps weights, so that processes share them.
    """
    return Model.open(path, memory=memory, context=context, spill=spill, shared=shared)


def generate(
    model: Model | TextModel | str | os.PathLike,
    prompt: str | Sequence[tuple[str, str]],
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    threads: int = 0,
    show: Callable[[str], object] | None = None,
) -> str:
    """Continue a text, or answer a chat given as pairs of role and content; gives the new text.

    Each piece of it is given to `show` as it comes. What is left out of sampling is as the model says.
    """
    if not isinstance(model, TextModel):
        model = TextModel(model if isinstance(model, Model) else open(model))
    tokens = model.encode(prompt) if isinstance(prompt, str) else model.encode_chat(list(prompt))
    return model.generate(
        tokens,
        max_tokens=max_tokens,
        stop=list(stop),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        threads=threads,
        show=show,
    )
