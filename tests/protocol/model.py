"""The engine's protocol as state machines for the explorer: what docs/protocol.md says in words.

A rank has a program: steps that follow one another, each of them ops of which some wait for others. It has the state
that the engine keeps (the mutex of the world, the sequence and its poison, the updates that are announced), and the
thread that reduces those. Whatever two ranks, or two ops of a rank, can do in either order is tried in both.

A call of MPI on a communicator is matched with the other ranks' calls by its place among the rank's own calls on that
communicator, and ends on all ranks when all have made it. MPI does not notice if they mean different things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from protocol.explorer import Fault, Finding, explore

COMMUNICATORS = ("sequence", "gradients", "overlapped", "control")
SEQUENCE, GRADIENTS, OVERLAPPED, CONTROL = range(4)
THREAD, END = -1, -2
"""What calls MPI beside the ops of a step, which are known by their places in it."""

BREAKS = (
    "no readiness",  # sums are made as soon as the gradient is here, without asking the others
    "by hand-over",  # the thread takes the updates in the order in which their first gradients come
    "no poison",  # the sequence goes on after the ranks have met at different places
    "no abort",  # a rank whose end is not everybody's leaves, instead of ending the job
    "no meeting",  # collectives move their data without having met
    "one communicator",  # the thread uses the communicator of the other sums
    "data without mutex",  # the mutex is held for the meeting only
    "ticket without mutex",  # an update gets its ticket after the mutex is free again
    "control without lock",  # objects are exchanged after the meeting, beside those of other ops
    "no turns",  # a graph without order runs its collectives as they come
    "no settling",  # MPI ends while the thread may be in it
    "end without giving up",  # a script ends and keeps updates whose gradients will not come
)


class Op(NamedTuple):
    """One op of a step.

    `kind` is "sum" (any collective whose data move under the mutex), "control" (one of Python objects), "announce" (an
    update), "gradient" (hands over `entry` of the update `name`) or "raise". `name` is what ranks must agree on.
    `after` are the places, in its step, of the ops that must be over before.
    """

    kind: str
    name: str = ""
    entry: int = 0
    after: tuple[int, ...] = ()


class Step(NamedTuple):
    """Ops that run as soon as they can. Where one fails the rest is dropped and, if the step `cancels`, the updates
    that it has announced are given up. `turns`: collectives wait for those that stand before them, as in a v1 graph.
    """

    ops: tuple[Op, ...]
    cancels: bool = True
    turns: bool = False


class Program(NamedTuple):
    """What a rank does. `catches`: an error ends a step, not the script."""

    steps: tuple[Step, ...]
    catches: bool = False


class Update(NamedTuple):
    name: str
    step: int
    here: tuple[bool, ...]
    given_up: bool = False
    failed: bool = False


class Call(NamedTuple):
    """A call of MPI that is under way, and what the rank means by it."""

    owner: int
    what: str
    content: tuple


class Rank(NamedTuple):
    index: int
    step: int = 0
    ops: tuple[str, ...] = ()  # "idle", "meets", "met", "moves data", "handed over", "over", "failed" or "dropped"
    cancelled: bool = False
    mutex: bool = False
    control: bool = False
    number: int = 0
    poison: bool = False
    parted: bool = False
    updates: tuple[Update, ...] = ()  # by ticket
    queue: tuple[int, ...] = ()  # the tickets that the thread has not taken yet
    ticket: int = -1  # the one that it has taken
    entry: int = 0
    calls: tuple[tuple[Call, ...], ...] = ((),) * len(COMMUNICATORS)
    failed: bool = False
    results: frozenset = frozenset()
    end: str = ""  # "meets", "settles", "differs", and then "gone" or, without having met, "left"


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    aborted: bool = False


Move = Callable[[], "Rank | None"]  # None: the job is ended


class Protocol:
    """Ranks with these programs. `broken` are those of BREAKS that are built in; where it `learns`, the thread chooses
    buckets with the others after each update.
    """

    def __init__(self, *programs: Program, broken: tuple[str, ...] = (), learns: bool = False):
        assert set(broken) <= set(BREAKS), broken
        self.programs, self.broken, self.learns = programs, set(broken), learns
        ops = [op for program in programs for step in program.steps for op in step.ops if op.kind == "gradient"]
        self.entries = {op.name: 1 + max(each.entry for each in ops if each.name == op.name) for op in ops}
        self.overlapped = GRADIENTS if "one communicator" in self.broken else OVERLAPPED

    def explore(self) -> Finding:
        start = State(tuple(self._begin(Rank(index)) for index in range(len(self.programs))))
        return explore(start, self._transitions, self._outcome)

    def _outcome(self, state: State) -> str:
        """What a state in which nothing can happen comes to: "the same result" or "an error"."""
        if state.aborted:
            return "an error"
        waiting = [rank.index for rank in state.ranks if rank.end not in ("gone", "left")]
        if waiting:
            raise Fault(f"ranks {waiting} wait for ever")
        errors = {rank.failed for rank in state.ranks}
        if len(errors) > 1:
            raise Fault("some ranks end with an error and others without")
        if errors == {False} and len({rank.results for rank in state.ranks}) > 1:
            raise Fault("ranks end with different results")
        return "an error" if errors == {True} else "the same result"

    def _transitions(self, state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        if state.aborted:
            return

        def moved(rank: Rank, move: Move) -> Callable[[], State]:
            def after() -> State:
                changed = move()
                if changed is None:
                    return State((), aborted=True)
                return State((*state.ranks[: rank.index], changed, *state.ranks[rank.index + 1 :]))

            return after

        for rank in state.ranks:
            if rank.end not in ("gone", "left"):
                for name, move in self._moves(rank):
                    yield f"rank {rank.index} {name}", moved(rank, move)
        for communicator in range(len(COMMUNICATORS)):
            calls = [rank.calls[communicator][0] for rank in state.ranks if rank.calls[communicator]]
            if len(calls) == len(state.ranks):
                name = f"all ranks: {calls[0].what} on '{COMMUNICATORS[communicator]}'"
                yield name, lambda at=communicator, calls=calls: self._complete(state, at, calls)

    # What a rank does by itself.

    def _begin(self, rank: Rank) -> Rank:
        steps = self.programs[rank.index].steps
        count = len(steps[rank.step].ops) if rank.step < len(steps) else 0
        return rank._replace(ops=("idle",) * count, cancelled=False)

    def _moves(self, rank: Rank) -> Iterator[tuple[str, Move]]:
        yield from self._moves_of_thread(rank)
        program = self.programs[rank.index]
        if rank.step == len(program.steps):
            yield from self._moves_at_end(rank)
            return
        step = program.steps[rank.step]
        failed = "failed" in rank.ops
        if failed and not rank.cancelled:
            yield "drops the rest of its step", lambda: self._cancel(rank, step)
        elif all(status in ("over", "failed", "dropped") for status in rank.ops):
            if failed and not program.catches:
                yield "raises an error, which ends the job", lambda: None
            else:
                after = rank._replace(step=rank.step + 1, failed=rank.failed or failed)
                yield f"ends step {rank.step}", lambda: self._begin(after)
        for place, op in enumerate(step.ops):
            status = rank.ops[place]
            if status == "idle" and not rank.cancelled and self._can_start(rank, step, place):
                yield f"comes to {_text(op)}", lambda place=place, op=op: self._start(rank, place, op)
            elif status == "met":
                yield f"goes on with {_text(op)}", lambda place=place, op=op: self._go_on(rank, place, op)

    def _can_start(self, rank: Rank, step: Step, place: int) -> bool:
        op = step.ops[place]
        if any(rank.ops[before] != "over" for before in op.after):
            return False
        if op.kind in ("gradient", "raise"):
            return True
        if step.turns and "no turns" not in self.broken and any(status != "over" for status in rank.ops[:place]):
            return False
        return not rank.mutex and not (op.kind == "control" and rank.control)

    def _start(self, rank: Rank, place: int, op: Op) -> Rank:
        if op.kind == "raise":
            return _at(rank, place, "failed")
        if op.kind != "gradient":
            return self._meet(rank, place, op)
        ticket = next(ticket for ticket, update in enumerate(rank.updates) if update.name == op.name)
        update = rank.updates[ticket]
        if update.failed:
            return _at(rank, place, "failed")
        if "by hand-over" in self.broken and not any(update.here):
            rank = rank._replace(queue=(*rank.queue, ticket))
        here = tuple(one or entry == op.entry for entry, one in enumerate(update.here))
        return _at(_with(rank, ticket, update._replace(here=here)), place, "handed over")

    def _meet(self, rank: Rank, place: int, op: Op) -> Rank:
        rank = rank._replace(mutex=True, control=rank.control or op.kind == "control")
        if rank.poison:
            return self._fail(rank, place)
        if "no meeting" in self.broken and place != END:
            return self._met(rank, place, op)
        call = Call(place, "a meeting", (op.kind, op.name, rank.number))
        return _calls(_at(rank, place, "meets"), SEQUENCE, call)

    def _met(self, rank: Rank, place: int, op: Op) -> Rank:
        if place == END:
            return rank._replace(end="settles")
        alone = {"sum": "data without mutex", "announce": "ticket without mutex", "control": "control without lock"}
        if op.kind == "control" or alone[op.kind] in self.broken:
            kept = rank.control and "control without lock" not in self.broken
            return _at(rank._replace(mutex=False, control=kept), place, "met")
        return self._go_on(rank, place, op)

    def _go_on(self, rank: Rank, place: int, op: Op) -> Rank:
        """What follows the meeting: the data, or the ticket."""
        if op.kind != "announce":
            call = Call(place, f"data of a {op.kind}", (op.name,))
            return _calls(_at(rank, place, "moves data"), CONTROL if op.kind == "control" else GRADIENTS, call)
        given_up = rank.cancelled and self.programs[rank.index].steps[rank.step].cancels
        update = Update(op.name, rank.step, (False,) * self.entries[op.name], given_up)
        queue = rank.queue if "by hand-over" in self.broken else (*rank.queue, len(rank.updates))
        kept = rank.mutex and "ticket without mutex" in self.broken  # another op's
        return _at(rank._replace(updates=(*rank.updates, update), queue=queue, mutex=kept), place, "over")

    def _fail(self, rank: Rank, place: int) -> Rank:
        """The collective of an op, or of the end, fails on this rank."""
        rank = rank._replace(mutex=False)
        if place == END:
            return rank._replace(end="differs", failed=True)
        if self.programs[rank.index].steps[rank.step].ops[place].kind == "control":
            rank = rank._replace(control=False)
        return _at(rank, place, "failed")

    @staticmethod
    def _cancel(rank: Rank, step: Step) -> Rank:
        ops = tuple("dropped" if status == "idle" else status for status in rank.ops)
        rank = rank._replace(ops=ops, cancelled=True)
        return _give_up(rank, rank.step) if step.cancels else rank

    def _moves_at_end(self, rank: Rank) -> Iterator[tuple[str, Move]]:
        if rank.end == "" and not rank.mutex:
            mine = rank if "end without giving up" in self.broken else _give_up(rank)
            yield "comes to the end of its script", lambda: self._meet(mine._replace(end="meets"), END, Op("exit"))
        elif rank.end == "settles":
            if "no settling" in self.broken or (rank.ticket < 0 and not rank.queue):
                yield "ends MPI", lambda: self._finalize(rank)
        elif rank.end == "differs":
            if "no abort" in self.broken:
                yield "leaves", lambda: rank._replace(end="left")
            else:
                yield "ends the job", lambda: None

    @staticmethod
    def _finalize(rank: Rank) -> Rank:
        if any(rank.calls):
            raise Fault(f"rank {rank.index} ends MPI while its thread is in it")
        return rank._replace(end="gone")

    def _moves_of_thread(self, rank: Rank) -> Iterator[tuple[str, Move]]:
        if rank.ticket < 0:
            if rank.queue:
                taken = rank._replace(ticket=rank.queue[0], queue=rank.queue[1:], entry=0)
                yield f"(thread) takes {rank.updates[rank.queue[0]].name}", lambda: taken
            return
        update = rank.updates[rank.ticket]
        here = update.here[rank.entry]
        if any(call.owner == THREAD for call in rank.calls[self.overlapped]) or not (here or update.given_up):
            return
        name = f"(thread) {'has' if here else 'gives up'} gradient {rank.entry} of {update.name}"
        if "no readiness" in self.broken:
            yield name, lambda: self._sum(rank) if here else self._fail_update(rank)
        else:
            call = Call(THREAD, "readiness", (rank.ticket, rank.entry, here))
            yield name, lambda: _calls(rank, self.overlapped, call)

    def _sum(self, rank: Rank) -> Rank:
        content = (rank.updates[rank.ticket].name, rank.entry)
        return _calls(rank, self.overlapped, Call(THREAD, "the sum of a gradient", content))

    def _fail_update(self, rank: Rank) -> Rank:
        """The update that the thread is at fails, and with it the ops that have handed over its gradients."""
        update = rank.updates[rank.ticket]
        rank = self._give_back(rank, update, None, "failed")
        return _with(rank, rank.ticket, update._replace(failed=True))._replace(ticket=-1)

    def _give_back(self, rank: Rank, update: Update, entry: int | None, status: str) -> Rank:
        steps = self.programs[rank.index].steps
        if rank.step == len(steps) or rank.step != update.step:
            return rank
        for place, op in enumerate(steps[rank.step].ops):
            its = op.kind == "gradient" and op.name == update.name and entry in (None, op.entry)
            if its and rank.ops[place] == "handed over":
                rank = _at(rank, place, status)
        return rank

    # What ranks do together, when all have called MPI on a communicator.

    def _complete(self, state: State, communicator: int, calls: list[Call]) -> State:
        if len({call.what for call in calls}) > 1:
            raise Fault(f"{calls[0].what} meets {next(c.what for c in calls if c.what != calls[0].what)}")
        ranks = []
        for rank, call in zip(state.ranks, calls):
            left = (*rank.calls[:communicator], rank.calls[communicator][1:], *rank.calls[communicator + 1 :])
            ranks.append(self._over(rank._replace(calls=left), call, calls))
        return State(tuple(ranks))

    def _over(self, rank: Rank, call: Call, calls: list[Call]) -> Rank:
        """A rank after its call, where those of all ranks were `calls`."""
        agree = len({one.content for one in calls}) == 1
        if call.what == "a meeting":
            rank = rank._replace(number=rank.number + 1)
            if not agree:
                return _calls(rank, SEQUENCE, Call(call.owner, "their places", ()))
            if rank.parted:
                raise Fault("ranks that have parted meet again")
            op = Op("exit") if call.owner == END else self.programs[rank.index].steps[rank.step].ops[call.owner]
            return self._met(rank, call.owner, op)
        if call.what == "their places":
            return self._fail(rank._replace(poison="no poison" not in self.broken, parted=True), call.owner)
        if call.what == "readiness":
            same = len({one.content[:2] for one in calls}) == 1
            return self._sum(rank) if same and all(one.content[2] for one in calls) else self._fail_update(rank)
        if call.what == "the choice of buckets":
            return rank._replace(ticket=-1)
        if not agree:
            raise Fault(f"{call.what}: ranks mix {' with '.join(map(str, dict.fromkeys(c.content for c in calls)))}")
        rank = rank._replace(results=rank.results | {call.content})
        if call.what != "the sum of a gradient":
            op = self.programs[rank.index].steps[rank.step].ops[call.owner]
            holds = "data without mutex" if op.kind == "sum" else ""
            if op.kind == "control":
                rank = rank._replace(control=rank.control and "control without lock" in self.broken)
            elif holds not in self.broken:
                rank = rank._replace(mutex=False)
            return _at(rank, call.owner, "over")
        update = rank.updates[rank.ticket]
        rank = self._give_back(rank, update, rank.entry, "over")
        if rank.entry + 1 < len(update.here):
            return rank._replace(entry=rank.entry + 1)
        if self.learns:
            return _calls(rank, self.overlapped, Call(THREAD, "the choice of buckets", ()))
        return rank._replace(ticket=-1)


def _text(op: Op) -> str:
    return f"gradient {op.entry} of {op.name}" if op.kind == "gradient" else f"{op.kind} {op.name}".strip()


def _at(rank: Rank, place: int, status: str) -> Rank:
    return rank if place == END else rank._replace(ops=(*rank.ops[:place], status, *rank.ops[place + 1 :]))


def _with(rank: Rank, ticket: int, update: Update) -> Rank:
    return rank._replace(updates=(*rank.updates[:ticket], update, *rank.updates[ticket + 1 :]))


def _calls(rank: Rank, communicator: int, call: Call) -> Rank:
    queue = (*rank.calls[communicator], call)
    return rank._replace(calls=(*rank.calls[:communicator], queue, *rank.calls[communicator + 1 :]))


def _give_up(rank: Rank, step: int | None = None) -> Rank:
    """Those updates, of `step` or all, of which gradients have not come."""
    updates = tuple(
        update._replace(given_up=True) if step in (None, update.step) and not all(update.here) else update
        for update in rank.updates
    )
    return rank._replace(updates=updates)
