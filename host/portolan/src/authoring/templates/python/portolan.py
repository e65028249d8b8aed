"""What a Portolan policy in Python sees: typed rows, settings, and helpers for the answers.

Numbers are whole, below 2**32, in the unit that the name says; wit/policy.wit tells what each column means. There is no
clock and no randomness: the request carries the time and a seed. The host's own functions are in `wit_world.imports`:

    from wit_world.imports import host, state, labels
    host.log(host.Level.INFO, "a line in the policy's log")
"""

import json

from componentize_py_types import Err
from wit_world.imports import host

NEVER = 0xFFFFFFFF
"""A cost or a score that means "never take this route"."""

ANY_JURISDICTION = 0
"""The index of "no restriction stated" among the jurisdictions."""


def told(answer):
    """Writes what `answer` raises to the policy's log: the trap that it ends in says nothing of it."""

    def answer_or_tell(*inputs):
        try:
            return answer(*inputs)
        except Exception as error:
            at = error.__traceback__
            while at.tb_next:
                at = at.tb_next
            place = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
            host.log(host.Level.ERROR, f"{type(error).__name__}: {error} at {place}")
            raise

    return answer_or_tell


def finite(value: int) -> int:
    """A sum as a cost or score that is not NEVER, however large."""
    return min(value, NEVER - 1)


def settings(config: str, defaults: dict) -> dict:
    """The binding's text, a JSON object, over the defaults.

    An unknown key or a value of another type than the default's is refused when the policy is bound.
    """
    if not config.strip():
        return defaults
    try:
        given = json.loads(config)
    except ValueError as error:
        raise Err(f"the configuration is not JSON: {error}")
    if not isinstance(given, dict):
        raise Err("the configuration is not a JSON object")
    for key, value in given.items():
        if key not in defaults:
            raise Err(f"there is no setting {key!r}")
        if type(value) is not type(defaults[key]):
            raise Err(f"{key} is to be of type {type(defaults[key]).__name__}")
        if isinstance(value, int) and value < 0:
            raise Err(f"{key} is not to be negative")
    return {**defaults, **given}


class _Row:
    __slots__ = ("_cells", "_start", "_columns")

    def __init__(self, cells: list[int], start: int = 0, columns: int | None = None):
        self._cells = cells
        self._start = start
        self._columns = len(cells) if columns is None else columns

    def _at(self, column: int) -> int:
        # Columns are only ever appended: one that the host does not know yet reads as 0.
        return self._cells[self._start + column] if column < self._columns else 0


class Request(_Row):
    __slots__ = ()

@REQUEST_ACCESSORS@


class Route(_Row):
    __slots__ = ()

@ROUTE_ACCESSORS@

    @property
    def is_local(self) -> bool:
        """Whether prefill and decode run at one site."""
        return self.prefill_site == self.decode_site

    def uncached_tokens(self, request: Request) -> int:
        """Prompt tokens that the prefill instance does not hold."""
        return max(0, request.prompt_tokens - self.cached_tokens)


class Cost(_Row):
    __slots__ = ()

@COST_ACCESSORS@


class Group(_Row):
    __slots__ = ()

@GROUP_ACCESSORS@


def _rows(view, stride: int, cells: list[int]) -> list:
    if stride == 0:
        return []
    return [view(cells, start, stride) for start in range(0, len(cells) - stride + 1, stride)]


def routes_of(stride: int, cells: list[int]) -> list[Route]:
    """The candidate routes, in order."""
    return _rows(Route, stride, cells)


def groups_of(stride: int, cells: list[int]) -> list[Group]:
    """The groups of cached blocks, in order."""
    return _rows(Group, stride, cells)


class Candidate:
    """A route with what it costs."""

    __slots__ = ("route", "cost")

    def __init__(self, route: Route, cost: Cost):
        self.route = route
        self.cost = cost


def candidates_of(stride: int, routes: list[int], cost_stride: int, costs: list[int]) -> list[Candidate]:
    """Routes and costs side by side, row by row. Routes decide how many there are."""
    priced = _rows(Cost, cost_stride, costs)
    nothing = Cost([])
    return [
        Candidate(route, priced[index] if index < len(priced) else nothing)
        for index, route in enumerate(routes_of(stride, routes))
    ]


# Tiers: every route of a tier comes before any of the next.
PREFERRED, SECOND, LAST = range(3)

# Tiers of the policy, twice: under "remote preferred" the local routes come after all others.
_TIERS = 3
# Between the worst route of a place and the best of the next, beside a factor of two, so that the host takes no two
# places for a near-tie.
_GAP_US = 1000
_LOCAL_ONLY, _REMOTE_PREFERRED, _REMOTE_REQUIRED = 1, 2, 3


def _is_open(mode: int, candidate: Candidate) -> bool:
    if candidate.cost.total_us == NEVER:
        return False
    if mode == _LOCAL_ONLY:
        return candidate.route.is_local
    return mode != _REMOTE_REQUIRED or not candidate.route.is_local


def scores_by_rank(request: Request, candidates: list[Candidate], rank) -> list[int]:
    """One score a route from `rank(candidate)`, a pair of tier and score, the smallest score first inside a tier.

    Routes that the client's prefill mode or the cost policy ruled out stay ruled out, whatever `rank` says.
    """
    mode = request.prefill_mode
    highest: dict[int, int] = {}
    placed: list[tuple[int, int] | None] = []
    for candidate in candidates:
        tier, score = rank(candidate) if _is_open(mode, candidate) else (LAST, NEVER)
        if score == NEVER:
            placed.append(None)
            continue
        place = tier + (_TIERS if mode == _REMOTE_PREFERRED and candidate.route.is_local else 0)
        highest[place] = max(score, highest.get(place, 0))
        placed.append((place, score))
    cap = NEVER - 1 if len(highest) <= 1 else NEVER >> len(highest)
    offsets: dict[int, int] = {}
    offset = 0
    for place in sorted(highest):
        offsets[place] = offset
        offset = min((offset + min(highest[place], cap)) * 2 + _GAP_US, NEVER)
    return [NEVER if one is None else offsets[one[0]] + min(one[1], cap) for one in placed]
