"""A second device for machines that have none: `elsewhere`. The CPU computes for it but does not mix with it.

Torch keeps a place for devices of others (PrivateUse1). A tensor there is a view of the memory of a CPU tensor, made by
the DLPack exchange under another device's number: dispatch, storage, autograd and `.to` are those of a real device.
Whatever torch has no general kernel for ends in `_compute`, which refuses what CUDA refuses:

* tensors of two devices in one operation, unless those of the CPU have no dimension and the operation is pointwise,
  or they are the indices of `x[i]`, as CUDA allows;
* a CPU generator, `.numpy()`;

and then lets the CPU do it on the same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "elsewhere"
_CPU, _ELSEWHERE = 1, 12  # kDLCPU, kDLExtDev of dlpack.h
_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "set_", "alias", "view_as_real", "view_as_complex")
_TAKE_CPU_INDICES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
_TAKE_CPU_SCALARS = (
    "where", "masked_fill", "masked_fill_", "fill", "fill_", "index_fill_", "index_put", "index_put_",
    "_index_put_impl_", "lerp", "clamp", "clamp_min", "clamp_max",
)  # fmt: skip
_double = True
_library = torch.library.Library("_", "IMPL")
_kernels = torch.library.Library("aten", "IMPL")

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def register(double: bool = True) -> None:
    """Add the device to this process, for good. Without `double` it is like MPS, which has no float64."""
    global _double
    _double = double
    _setup_privateuseone_for_python_backend(NAME, _Module())
    # Parameters keep their identity when a module moves, as they do on the way to CUDA.
    torch.__future__.set_swap_module_params_on_conversion(True)
    _library.fallback(_compute, "PrivateUse1")
    for name in ("empty.memory_format", "empty_strided"):
        _kernels.impl(name, _factory(name), "PrivateUse1")
    _kernels.impl("_copy_from", _copy, "PrivateUse1")
    for name in ("convolution_overrideable", "convolution_backward_overrideable"):
        _kernels.impl(name, globals()[f"_{name.removesuffix('_overrideable')}"], "PrivateUse1")
    torch.accelerator.synchronize = lambda device=None: None  # all is done when Python goes on
    torch.UntypedStorage.clone = _clone  # type: ignore[method-assign]


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def _relabelled(tensor: Tensor, device: int) -> Tensor:
    """The same memory under the number of another device."""
    if device == _ELSEWHERE and tensor.dtype == torch.float64 and not _double:
        raise TypeError(f"Cannot make a {NAME} tensor of float64, which {NAME} does not have; use float32")
    capsule = torch._C._to_dlpack(tensor)
    ctypes.c_int32.from_address(_pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)).value = device
    return torch._C._from_dlpack(capsule)


def _is_here(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu"


def _is_elsewhere(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _factory(name: str) -> Any:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def make(*sizes: Any, device: Any = None, pin_memory: Any = None, **options: Any) -> Tensor:
        return _relabelled(op(*sizes, device="cpu", **options), _ELSEWHERE)

    return make


def _copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """`.to` and `copy_`, the one road between devices."""
    here = [_relabelled(each, _CPU) if _is_elsewhere(each) else each for each in (source, target)]
    here[1].copy_(here[0])
    return target


def _convolution(*args: Any) -> Tensor:
    return _compute(torch.ops.aten.convolution.default, *args)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return _compute(torch.ops.aten.convolution_backward.default, gradient, x, weight, [len(weight)], *args)


def _clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """For deep copies: torch has no allocator for this device, and would look for one."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone().untyped_storage()


def _compute(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """`op` on the device: checked, done by the CPU on the same memory, and what comes out is on the device."""
    name = op._schema.name.removeprefix("aten::")
    if name in _VIEWS:  # these look at sizes, strides and the storage only, never at what it holds
        return op.redispatch(_CPU_KEYS, *args, **kwargs)
    named = dict(zip((each.name for each in op._schema.arguments), args, strict=False)) | kwargs
    _check(op, name, named)
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def inward(value: Any) -> Any:
        if _is_elsewhere(value):
            if id(value) not in seen:
                # An empty `out` is about to be given room, which borrowed memory cannot be.
                inner = _relabelled(value, _CPU) if value.numel() else torch.empty(value.shape, dtype=value.dtype)
                seen[id(value)] = (value, inner)
            return seen[id(value)][1]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def outward(value: Any) -> Any:
        if _is_here(value):
            return same[id(value)] if id(value) in same else _relabelled(value, _ELSEWHERE)
        return value

    result = op(**{key: _mapped(inward, value) for key, value in named.items()})
    same = {id(inner): outer for outer, inner in seen.values()}
    for outer, inner in seen.values():
        if outer.shape != inner.shape:
            _take(outer, inner)
    return _mapped(outward, result)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    return [function(each) for each in value] if isinstance(value, list | tuple) else function(value)


def _take(outer: Tensor, inner: Tensor) -> None:
    new = _relabelled(inner, _ELSEWHERE)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        _CPU_KEYS, outer, new.untyped_storage(), new.storage_offset(), new.shape, new.stride()
    )


def _check(op: torch._ops.OpOverload, name: str, named: dict[str, Any]) -> None:
    """Refuse what CUDA refuses."""
    for key, value in named.items():
        if isinstance(value, torch.Generator):
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu' ({op})")
        for tensor in filter(_is_here, value if isinstance(value, list | tuple) else (value,)):
            if key == "indices" and name in _TAKE_CPU_INDICES and _is_elsewhere(named["self"]):
                continue
            pointwise = torch.Tag.pointwise in op.tags or name in _TAKE_CPU_SCALARS
            if pointwise and tensor.dim() == 0 and key not in _written(op):
                continue
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {op} got `{key}` of shape {tuple(tensor.shape)} "
                f"on the CPU and others on {NAME}"
            )


def _written(op: torch._ops.OpOverload) -> set[str]:
    return {each.name for each in op._schema.arguments if each.alias_info is not None and each.alias_info.is_write}
