"""Exact randomness and exact resume for PyTorch data loading.

Every random choice that a sample makes is a function of ``(seed, epoch, index)``, and the order of
samples one of ``(seed, epoch, position)``; so a run's data position is ``<epoch, cursor>``.
"""

# Lower rooms know nothing of higher ones, and nothing inside imports this file but integrations/,
# an adapter for each of other people's libraries:
#   _around  _checks  _sharding
#   _record  _position  _world
#   _keys  _occurrences
#   _keyed_sampler  _permutation  _rng  _process  _shares
#   _batch  _lengths  _packing  _weighted  _worker
#   _keyed  _order
#   _plan
#   _dataset  _mixed  _sampler
#   _fetch  _iterated  _mixture  _tolerant  _wrapper
#   _pass
#   _loader
#   _shards
#   _audit  testing  __main__
from seedcursor._audit._report import AuditReport as AuditReport
from seedcursor._audit._report import Finding as Finding
from seedcursor._audit._run import audit as audit
from seedcursor._batch import batch_rng as batch_rng
from seedcursor._dataset import SKIP as SKIP
from seedcursor._dataset import StatefulDataset as StatefulDataset
from seedcursor._dataset import StatefulIterableDataset as StatefulIterableDataset
from seedcursor._dataset import sample_rng as sample_rng
from seedcursor._iterated import IteratedDataset as IteratedDataset
from seedcursor._keyed_sampler import KeyedSampler as KeyedSampler
from seedcursor._lengths import LengthBatchSampler as LengthBatchSampler
from seedcursor._loader import StatefulDataLoader as StatefulDataLoader
from seedcursor._mixture import IterableMixture as IterableMixture
from seedcursor._mixture import Mixture as Mixture
from seedcursor._occurrences import Occurrences as Occurrences
from seedcursor._packing import PackedBatchSampler as PackedBatchSampler
from seedcursor._packing import Packer as Packer
from seedcursor._permutation import KeyedPermutation as KeyedPermutation
from seedcursor._process import load_rng_state_dict as load_rng_state_dict
from seedcursor._process import rng_state_dict as rng_state_dict
from seedcursor._record import Occurrence as Occurrence
from seedcursor._sampler import StatefulBatchSampler as StatefulBatchSampler
from seedcursor._shards._dataset import ShardedDataset as ShardedDataset
from seedcursor._shards._format import ShardFormat as ShardFormat
from seedcursor._shards._index import index_shards as index_shards
from seedcursor._shards._windows import WindowedSampler as WindowedSampler
from seedcursor._tolerant import TolerantDataset as TolerantDataset
from seedcursor._tolerant import TolerantIterableDataset as TolerantIterableDataset
from seedcursor._weighted import BalancedSampler as BalancedSampler
from seedcursor._weighted import WeightedSampler as WeightedSampler
from seedcursor._weighted import WeightedShuffle as WeightedShuffle
from seedcursor._worker import seed_worker as seed_worker
from seedcursor._wrapper import SeededDataset as SeededDataset
from seedcursor._wrapper import seeded as seeded
