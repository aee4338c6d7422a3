from torch.distributed.fsdp._common_utils import _FSDPState
from torch.distributed.fsdp._runtime_utils import (
    _register_post_forward_hooks,
    _register_pre_forward_hooks,
    _register_root_pre_forward_hook,
)
from torch.distributed.fsdp.flat_param import FlatParamHandle, HandleConfig


def fully_shard(module, mixed_precision=None):
    """Does by hooks on ``module`` what a wrapper does in its forward."""
    state = _FSDPState()
    state.mixed_precision = mixed_precision or state.mixed_precision
    mine = [p for p in module.parameters() if not hasattr(p, "_is_sharded")]
    for param in mine:
        param._is_sharded = True
    config = HandleConfig(state.mixed_precision.param_dtype)
    state._handles = [FlatParamHandle(mine, module, config)]
    _register_pre_forward_hooks(state, [module])
    _register_post_forward_hooks(state, [module])
    _register_root_pre_forward_hook(state, module)
    return module
