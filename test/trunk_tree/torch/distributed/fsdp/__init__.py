from .api import MixedPrecision
from .fully_sharded_data_parallel import FullyShardedDataParallel

__all__ = ["FullyShardedDataParallel", "MixedPrecision"]
