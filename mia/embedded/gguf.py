"""A low-rank adapter written for llama.cpp: merged into its base model, or as a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf.quants import QuantError, dequantize, quantize

from mia.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mia.embedded.adapters import Adapter, Pair

ARCHITECTURE = "llama"
KIND = gguf.GGMLQuantizationType.Q8_0

_MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HEADS = {"self_attn.q_proj": "head_count", "self_attn.k_proj": "head_count_kv"}
# What the writer says itself, or what is not so of the merged file any more.
_NOT_KEPT = (
    *("GGUF.", "general.architecture", "general.alignment", "general.file_type", "general.name"),
    "general.base_model.",
)


class Base:
    """The model that an adapter was trained on, as its GGUF file describes it."""

    def __init__(self, path: Path) -> None:
        """Read the file's metadata.

        Raises:
            InputError: the file cannot be read, or its architecture is not Llama's.
        """
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise InputError(f"{path} cannot be read as GGUF: {error}.", remedy="Fetch it again.") from error
        self.path = path
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        found = self.value("general.architecture")
        if found != ARCHITECTURE:
            raise InputError(
                f"Adapters are for models of the architecture {ARCHITECTURE}; {path} is of {found}.",
                remedy="Set MIA_ADAPTERS=none, or MIA_MODEL to the adapter's own base.",
            )

    def value(self, key: str) -> Any:
        """Return a value of the metadata, None where there is none."""
        return self._reader.fields[key].contents() if key in self._reader.fields else None

    def count(self, key: str) -> int:
        """Return a count of the metadata.

        Raises:
            InputError: there is none, or another one for each layer.
        """
        found = self.value(f"{ARCHITECTURE}.{key}")
        if not isinstance(found, int):
            raise InputError(f"{self.path} has no single number {key}.", remedy="Fetch it again, or use another base.")
        return found

    def copy_metadata(self, writer: gguf.GGUFWriter) -> None:
        """Give `writer` the base's tokenizer, chat template and shape."""
        for key, field in self._reader.fields.items():
            if not key.startswith(_NOT_KEPT):
                inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)

    def fitted(self, adapter: Adapter) -> dict[str, Pair]:
        """Return the adapter's matrices by the name of the tensor that they change, in llama.cpp's order of rows.

        Raises:
            InputError: a module is unknown, missing or of another shape than the base's.
        """
        remedy = f"Use the adapter with the base that it was trained on, not {self.path.name}."
        named = {(layer, module) for layer in range(self.count("block_count")) for module in _MODULES}
        wanted = {(layer, module) for layer, module in named if module.rpartition(".")[2] in adapter.targets}
        for what, which in (("lacks", wanted - adapter.pairs.keys()), ("has", adapter.pairs.keys() - named)):
            if which:
                layer, module = min(which)
                text = f"The adapter {adapter.folder} {what} matrices for {module} of layer {layer}"
                raise InputError(f"{text}, which the base {'has' if what == 'lacks' else 'lacks'}.", remedy=remedy)
        fitted = {}
        for (layer, module), (a, b) in adapter.pairs.items():
            name = f"blk.{layer}.{_MODULES[module]}.weight"
            shape = tuple(map(int, self.tensors[name].shape[::-1])) if name in self.tensors else None
            if shape != (b.shape[0], a.shape[1]):
                found = f"{b.shape[0]} x {a.shape[1]}"
                raise InputError(
                    f"{adapter.folder} changes a {found} matrix {name}; the base's: {shape}.", remedy=remedy
                )
            heads = self.count(f"attention.{_HEADS[module]}") if module in _HEADS else None
            fitted[name] = (a, permuted(b, heads) if heads else b)
        return fitted


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of a query or key matrix in the order that llama.cpp wants them in.

    Its rotary embedding turns neighbouring rows of a head together, that of the trainer rows half a head apart.
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_merged(base: Path, adapter: Adapter, out: Path) -> None:
    """Write the base with the adapter added: changed tensors in Q8_0, all others byte for byte.

    Raises:
        InputError: the base cannot be read, or the adapter does not fit it.
    """
    model = Base(base)
    changes = model.fitted(adapter)
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    model.copy_metadata(writer)
    matrices = sum(len(tensor.shape) > 1 for tensor in model.tensors.values())
    mostly = gguf.LlamaFileType.MOSTLY_Q8_0 if 2 * len(changes) > matrices else model.value("general.file_type")
    if mostly is not None:
        writer.add_file_type(mostly)
    writer.add_name(f"{model.value('general.name') or base.stem} + {adapter.name}")
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, model.value("general.name") or base.stem)
    writer.add_string("mia.adapter.name", adapter.name)
    writer.add_string("mia.adapter.sha256", adapter.sha256)
    for name, tensor in model.tensors.items():
        shape = tuple(map(int, tensor.shape[::-1]))
        kind = KIND if name in changes else tensor.tensor_type
        block, size = gguf.GGML_QUANT_SIZES[kind]
        # float32, of which the writer only asks that it is not uint8: the shape is in elements, not in bytes
        writer.add_tensor_info(name, shape, np.dtype(np.float32), tensor.n_elements // block * size, kind)
    with_data = (
        _sum(tensor, changes[name], adapter.scale) if name in changes else tensor.data
        for name, tensor in model.tensors.items()
    )
    _finish(writer, with_data)


def write_lora(base: Path, adapter: Adapter, out: Path) -> None:
    """Write the adapter as a GGUF of its own, which llama.cpp adds to the base while it runs.

    Raises:
        InputError: the base cannot be read, or the adapter does not fit it.
    """
    matrices: dict[str, np.ndarray] = {}
    for name, (a, b) in Base(base).fitted(adapter).items():
        matrices |= {f"{name}.lora_a": a, f"{name}.lora_b": b}
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, adapter.alpha)
    writer.add_name(adapter.name)
    for name, matrix in matrices.items():
        writer.add_tensor_info(name, matrix.shape, matrix.dtype, matrix.nbytes)
    _finish(writer, matrices.values())


def _sum(tensor: gguf.ReaderTensor, change: Pair, scale: float) -> np.ndarray:
    a, b = (matrix.astype(np.float32) for matrix in change)
    try:
        return quantize(dequantize(tensor.data, tensor.tensor_type) + scale * (b @ a), KIND)
    except (NotImplementedError, QuantError) as error:
        text = f"{tensor.name} is stored in a way that cannot be merged: {error}."
        raise InputError(text, remedy="Use a base in F16, Q8_0, Q4_1 or Q4_K.") from error


def _finish(writer: gguf.GGUFWriter, tensors: Iterable[np.ndarray]) -> None:
    """Write the file, holding one tensor at a time."""
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(tensor)
    finally:
        writer.close()
