"""One source of data within a call of fit, evaluate or predict, and how ranks share its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.analysis import dry_trace
from matex_tf.keras import async_training, step_check
from matex_tf.loops import explain, traces
from matex_tf.resilience import elastic, elastic_step, fit_state
from matex_tf.runtime import notes, objects
from matex_tf.servers import asynchronous, taken_batches
from matex_tf.servers.pieces import update_costs
from matex_tf.sharding import (
    fingerprint,
    iteration,
    pushdown,
    share_arrays,
    share_batches,
    sliced_dataset,
    weak_batches,
)
from matex_tf.sharding.uneven import leases
from matex_tf.world import world


def _list_leaves(inputs: Any) -> list[Any]:
    import tensorflow as tf

    return [leaf for leaf in tf.nest.flatten(inputs) if leaf is not None]


class Stage:
    """One source of data within a call: the one that trains, or one that validates."""

    def __init__(self, model: Any, trains: bool):
        self.model = model
        self.trains = trains
        self.weak = trains and settings.get_settings().scaling == "weak"
        self.counts: list[int] | None = None
        self.inputs: Any = None
        self.batch_size = 0
        self.own_batches: list[int] | None = None
        self.shuffle = False
        self.epochs = 1  # that one iteration of arrays goes through: all of them under Keras 2
        self.first: tuple[int, int] | None = None
        self.dealt = share_arrays.Dealt()
        self.numbered: Any = None
        self.whole = False
        self.why_whole = ""
        self.gives_whole_batches = False  # of which the step takes its slice
        self.rows_of_batch: int | None = None  # of arrays
        self.pending: tuple[Any, Any] | None = None  # the whole batches, and what is iterated, until it is decided
        self.element_spec: Any = None  # of what the step is given, where that is not what is iterated
        self.shares: leases.Leases | None = None  # by which batches are cut, where those of ranks may differ
        self.kept: fit_state.Fit | None = None  # of how far it has come, with MATEX_STATE
        self.may_take_turns = False
        self.is_by_steps = False  # who iterates asks for each batch by its number (Keras 3)
        self.steps: int | None = None  # of an epoch, where that is known
        self.proof: async_training.Proof | None = None  # that ranks can take turns at batches, where they are to
        self.turns: asynchronous.Turns | None = None  # which ranks take at batches
        self.are_arrays = False
        self.whole_pipeline: str | None = None  # why every rank runs the whole pipeline, where that may be much work

    @property
    def name(self) -> str:
        return "the training data of fit" if self.trains else "the data of evaluate"

    @property
    def is_dealt(self) -> bool:
        """Whether which rows meet in a step depends on the number of ranks."""
        shares = (self.counts, self.own_batches, self.numbered)
        return self.weak or any(part is not None for part in shares)

    @property
    def compares(self) -> bool:
        """Whether ranks are to see the same batches."""
        shared = self.counts is None and self.own_batches is None and self.numbered is None
        return shared and not self.weak and not self.whole

    def look_at(self, inputs: Any, batch_size: int | None, steps_per_epoch: int | None, shuffle: Any) -> None:
        """Learn whether `inputs` (a structure of arrays) are the same on all ranks or each rank's share."""
        arrays = [leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf) for leaf in _list_leaves(inputs)]
        if not arrays or not fingerprint.are_shares(arrays, self.name):
            return
        elastic.refuse_after_loss(f"{self.name}, each rank's own share,")
        rows = {len(array) for array in arrays}
        if len(rows) != 1:
            raise world.RankError(f"{self.name}: this rank's arrays have different numbers of rows: {sorted(rows)}")
        self.counts = objects.allgather(rows.pop(), f"counting the rows of {self.name}")
        total = sum(self.counts)
        if not batch_size:
            batch_size = -(-total // steps_per_epoch) if steps_per_epoch else 32
        self.batch_size = batch_size * world.get_world().trainers if self.weak else batch_size
        self.inputs, self.shuffle = inputs, bool(shuffle)
        if self.trains:
            self._learn_dealt(arrays)

    def _learn_dealt(self, arrays: list[np.ndarray]) -> None:
        """Learn how a reader dealt the rows, and that this call of fit takes them so."""
        for dealt in map(share_arrays.find_deal, arrays):
            self.dealt = share_arrays.Dealt(
                *(mine if mine is not None else its for mine, its in zip(self.dealt, dealt))
            )
        mine = (self.dealt, self.batch_size)
        everyone = objects.allgather(mine, f"how the rows of {self.name} were dealt")
        dealt = everyone[0][0]
        if any(theirs != everyone[0] for theirs in everyone) or dealt.batch_size not in (None, self.batch_size):
            raise world.RankError(
                f'{self.name}: its rows were dealt for batches of {dealt.batch_size} (distribution="batch"), the batch '
                f"size of this call is {self.batch_size}; give both the same, on all ranks"
            )
        if dealt.batch_size is not None and self.shuffle:
            notes.print_note(
                'the rows were dealt in batches (distribution="batch") for the loss curve of the sequential run, but '
                "fit shuffles them (its default); with shuffle=False each step has the sequential run's rows"
            )

    def look_at_source(self, source: Any) -> None:
        """Learn how many batches each rank has, where `source` is a dataset over this rank's own share."""
        if not hasattr(source, "element_spec") or not share_arrays.is_share(source):
            return
        if share_arrays.find_whole(source) is not None:
            return
        elastic.refuse_after_loss(f"{self.name}, each rank's own share,")
        self.numbered = share_arrays.find_numbered(source)
        if self.numbered is not None:
            return
        number = int(source.cardinality())
        self.own_batches = objects.allgather(number, f"counting the batches of {self.name}")
        if -2 in self.own_batches:
            raise world.RankError(
                f"{self.name} is a tf.data.Dataset over each rank's share whose number of batches is not known (a step "
                "such as filter hides it), so that ranks could end at different steps. Tell it with "
                "`dataset.apply(tf.data.experimental.assert_cardinality(n))`, or pass the share's arrays to fit."
            )

    def choose_batch_size(self, batch_size: int | None) -> int | None:
        """The batch size with which Keras is to batch arrays."""
        self.rows_of_batch = batch_size or 32
        return (batch_size or 32) * world.get_world().trainers if self.weak else batch_size

    def distribute_dataset(self, dataset: Any, are_arrays: bool) -> Any:
        """The dataset that Keras is to iterate in place of `dataset`: elements are `sliced_dataset.Batch`."""
        mine = self._make_own_dataset(dataset, are_arrays)
        if mine is not None:
            if self.trains:
                self._say_no_turns("each rank has its own share of the data")
            self.pending = None, mine
            return mine
        whole = share_arrays.find_whole(dataset)
        dataset = dataset if whole is None else whole
        self.are_arrays = are_arrays
        self.may_take_turns = self._is_to_take_turns()
        if self.may_take_turns:
            # With MATEX_ELASTIC each rank has all batches, so that it can train those of others.
            mine = taken_batches.take_batches(dataset, are_arrays and not elastic.is_on(), self._keep_first)
        else:
            mine = self._slice_dataset(dataset)
        self.pending = dataset, mine
        return mine

    def _slice_dataset(self, dataset: Any) -> Any:
        """Slices of the batches of `dataset`, or with MATEX_ELASTIC the batches, of which each step takes its slice."""
        if self.trains and elastic.is_on():
            self.gives_whole_batches = True
            return iteration.exempt_dataset(iteration.read_alike(dataset, lambda whole: whole))
        sliced, self.whole_pipeline = pushdown.push_down_slices(dataset, self.are_arrays, self._keep_first, self.shares)
        return sliced

    def _make_own_dataset(self, dataset: Any, are_arrays: bool) -> Any:
        """The dataset of this rank's own rows, where each rank has its share of the data; else None."""
        if self.counts is not None:
            if self.dealt.reshuffle is not None and self.epochs > 1:
                notes.print_note(
                    'reshuffle="epoch" exchanges no rows between the epochs of fit on arrays under Keras 2, which '
                    "iterates them once for all epochs; as_dataset deals the rows anew in each"
                )
            return share_batches.share_dataset(
                self.inputs, self.counts, self.batch_size, self.shuffle, self.dealt, epochs=self.epochs
            )
        if self.numbered is not None:
            return self.numbered
        if self.weak and not are_arrays and self.own_batches is None:
            return weak_batches.group_batches(dataset)
        if self.own_batches is not None:
            return share_batches.make_own_batches(dataset, self.own_batches)
        return None

    def _is_to_take_turns(self) -> bool:
        if not self.trains or not (asynchronous.is_chosen() or update_costs.are_measured()):
            return False
        why = async_training.find_call_obstacle(self.is_by_steps)
        self._say_no_turns(why)
        return why is None and asynchronous.is_chosen()

    def _say_no_turns(self, why: str | None) -> None:
        if why is not None:
            asynchronous.say_not(f"fit on '{self.model.name}'", why)

    def decide_sharing(self, function: Any, make_anew: Callable[[], Any], callbacks: Sequence[Any] = ()) -> bool:
        """See whether ranks can share the step that `function` makes; else every rank computes whole batches.

        Collective. It is traced for the batches that it will be given, if it is not yet; nobody has iterated them.

        Returns:
            Whether it can be called; else it is to be made anew: its trace has failed, or was for slices.
        """
        import tensorflow as tf

        if self.pending is None:
            return True
        if self.may_take_turns:
            self._take_turns(function, callbacks)
        elif self.trains and update_costs.are_measured():
            self._say_no_turns(async_training.find_obstacle(self.model, self.steps, callbacks))
        (whole, mine), self.pending = self.pending, None
        if self.turns is not None:
            return True
        spec = self.element_spec or mine.element_spec
        if self.gives_whole_batches:
            rows = tf.nest.map_structure(elastic_step.open_rows, spec)
            spec = sliced_dataset.Batch(rows, tf.TensorSpec([4], tf.float64))
        kind = "train" if self.trains else "test"
        is_fixed = whole is not None and step_check.has_fixed_rows(whole.element_spec)
        states = dry_trace.read_random_states()
        why = step_check.find_obstacle(self.model, kind, function, spec, is_fixed)
        reasons = [one for one in objects.allgather(why, f"whether ranks can share {self.name}") if one]
        if not reasons:
            if self.trains:
                explain.say_shared(f"the step of fit on '{self.model.name}'")
            return True
        if whole is None:
            explain.say_inexact(reasons[0])
            return why != traces.NAMED
        met = step_check.find_obstacle_if_whole(self.model, kind, spec, is_fixed, reasons, states, make_anew, self.name)
        if met == "":
            if self.trains:
                explain.say_shared(f"the step of fit on '{self.model.name}'", reasons[0])
            return True
        reasons = [met] if met == step_check.OTHER else reasons
        self.whole = True
        if self.is_model_shared() and not self.gives_whole_batches:
            # Said once the step was traced, and so what of it is shared; in eager code that shows later.
            self.why_whole = "" if reasons[0] == step_check.EAGER else reasons[0]
        else:
            explain.say_whole(reasons[0], "a training step" if self.trains else "a step of evaluate")
        if not self.gives_whole_batches:
            iteration.iterate_instead(mine, sliced_dataset.make_whole_dataset(whole))
        if met is not None:
            return False
        return step_check.is_made_for_whole(function) or (why != traces.NAMED and not self.trains)

    def _take_turns(self, function: Any, callbacks: Sequence[Any]) -> None:
        """Have ranks take turns at batches, or go on with slices of them. Collective."""
        assert self.pending is not None
        whole, mine = self.pending
        self.proof = async_training.Proof(self.model)
        why = async_training.find_obstacle(self.model, self.steps, callbacks)
        why = why or self.proof.prove_step(function, mine.element_spec)
        spec, most = whole.element_spec, self.steps or 0
        self.turns, why = async_training.begin_turns(self.proof, why, self.model, spec, most, self.kept)
        if self.turns is not None:
            async_training.say_turns(self.rows_of_batch or step_check.find_row_count(whole.element_spec))
            return
        self.proof = None
        self._say_no_turns(why)
        sliced = self._slice_dataset(whole)
        self.element_spec = sliced.element_spec
        iteration.iterate_instead(mine, sliced)

    def is_model_shared(self) -> bool:
        """Whether every rank computes the step whole, but for the calls of the model in it."""
        return self.trains and self.whole

    def _keep_first(self, digest: tuple[int, int] | None) -> None:
        self.first = digest

    def count_batches(self, number: int | None, are_arrays: bool) -> int | None:
        """How many steps an epoch has where Keras counted `number` batches on this rank."""
        if self.counts is not None:
            return -(-sum(self.counts) // self.batch_size)
        if self.numbered is not None:
            return int(self.numbered.cardinality())
        if self.own_batches is not None:
            return share_batches.count_most_batches(self.own_batches)
        if self.weak and not are_arrays and number is not None:
            return -(-number // world.get_world().trainers)
        return number
