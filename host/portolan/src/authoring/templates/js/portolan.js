// What a Portolan policy in JavaScript sees: typed rows, settings, and one function a question that makes the exports.
//
// Numbers are whole, below 2^32, in the unit that the name says; wit/policy.wit tells what each column means. There is
// no clock and no randomness: the request carries the time and a seed. The host's own functions are imported by name:
//
//   import host from "portolan:policy/host@0.1.0";      host.log("info", "a line in the policy's log")
//   import state from "portolan:policy/state@0.1.0";    state.get(key), state.set(key, value, ttlMs), state.add(key, n)
//   import labels from "portolan:policy/labels@0.1.0";  labels.get(key)

import host from "portolan:policy/host@0.1.0";

/** A cost or a score that means "never take this route". */
export const NEVER = 0xffffffff;
/** The index of "no restriction stated" among the jurisdictions. */
export const ANY_JURISDICTION = 0;

/** A sum as a cost or score that is not NEVER, however large. */
export function finite(value) {
  return Math.min(value, NEVER - 1);
}

/**
 * The binding's text, a JSON object, over the defaults. An unknown key or a value of another type than the default's
 * is refused when the policy is bound.
 */
export function settings(config, defaults) {
  if (config.trim() === "") return defaults;
  let given;
  try {
    given = JSON.parse(config);
  } catch (error) {
    throw `the configuration is not JSON: ${error.message}`;
  }
  if (given === null || typeof given !== "object" || Array.isArray(given)) {
    throw "the configuration is not a JSON object";
  }
  for (const [key, value] of Object.entries(given)) {
    if (!Object.hasOwn(defaults, key)) throw `there is no setting ${JSON.stringify(key)}`;
    if (typeof value !== typeof defaults[key]) throw `${key} is to be a ${typeof defaults[key]}`;
    if (typeof value === "number" && !(Number.isSafeInteger(value) && value >= 0)) {
      throw `${key} is to be a whole number, not negative`;
    }
  }
  return { ...defaults, ...given };
}

// componentize-qjs takes 32-bit values for signed ones: those from 2^31 on come as negative numbers, and have to go
// back as such.
const fromHost = (value) => value >>> 0;
const toHost = (value) => value | 0;

class Row {
  constructor(cells, start, columns) {
    this.cells = cells;
    this.start = start;
    this.columns = columns;
  }

  /** Columns are only ever appended: one that the host does not know yet reads as 0. */
  at(column) {
    return column < this.columns ? fromHost(this.cells[this.start + column]) : 0;
  }
}

export class Request extends Row {
@REQUEST_ACCESSORS@
}

export class Route extends Row {
@ROUTE_ACCESSORS@

  /** Whether prefill and decode run at one site. */
  get isLocal() {
    return this.prefillSite === this.decodeSite;
  }

  /** Prompt tokens that the prefill instance does not hold. */
  uncachedTokens(request) {
    return Math.max(0, request.promptTokens - this.cachedTokens);
  }
}

export class Cost extends Row {
@COST_ACCESSORS@
}

export class Group extends Row {
@GROUP_ACCESSORS@
}

function rows(View, stride, cells) {
  const views = [];
  if (stride === 0) return views;
  for (let start = 0; start + stride <= cells.length; start += stride) views.push(new View(cells, start, stride));
  return views;
}

const requestOf = (cells) => new Request(cells, 0, cells.length);

// --- Routing: sorting routes into tiers ---

/** Every route of a tier comes before any of the next. */
export const Tier = { preferred: 0, second: 1, last: 2 };

// Tiers of the policy, twice: under "remote preferred" the local routes come after all others.
const TIERS = 3;
// Between the worst route of a place and the best of the next, beside a factor of two, so that the host takes no two
// places for a near-tie.
const GAP_US = 1000;
const LOCAL_ONLY = 1;
const REMOTE_PREFERRED = 2;
const REMOTE_REQUIRED = 3;

function isOpen(request, { route, cost }) {
  if (cost.totalUs === NEVER) return false;
  if (request.prefillMode === LOCAL_ONLY) return route.isLocal;
  if (request.prefillMode === REMOTE_REQUIRED) return !route.isLocal;
  return true;
}

/**
 * The decision that takes routes by `rank(candidate)` = { tier, score }, the smallest score first inside a tier. Routes
 * that the client's prefill mode or the cost policy ruled out stay ruled out, whatever `rank` says.
 */
export function byRank(request, candidates, rank) {
  const remotePreferred = request.prefillMode === REMOTE_PREFERRED;
  const highest = new Array(2 * TIERS).fill(null);
  const placed = candidates.map((candidate) => {
    if (!isOpen(request, candidate)) return null;
    const { tier, score } = rank(candidate);
    if (score === NEVER) return null;
    const place = tier + (remotePreferred && candidate.route.isLocal ? TIERS : 0);
    highest[place] = Math.max(score, highest[place] ?? 0);
    return { place, score };
  });
  const used = highest.filter((top) => top !== null).length;
  const cap = used <= 1 ? NEVER - 1 : Math.floor(NEVER / 2 ** used);
  let next = 0;
  const offsets = highest.map((top) => {
    const offset = next;
    if (top !== null) next = Math.min((next + Math.min(top, cap)) * 2 + GAP_US, NEVER);
    return offset;
  });
  const scores = placed.map((one) => toHost(one === null ? NEVER : offsets[one.place] + Math.min(one.score, cap)));
  return { tag: "scores", val: scores };
}

/** Hold the request this many milliseconds (at most 10000), then ask again. */
export const defer = (ms) => ({ tag: "defer", val: ms });
/** Refuse it, with a reason for the client. */
export const refuse = (reason) => ({ tag: "refuse", val: reason });

// --- From a policy to the exports of its world ---

// What a policy throws ends the call as a trap, which says nothing of it: the policy's log does.
function told(answer) {
  return (...inputs) => {
    try {
      return answer(...inputs);
    } catch (error) {
      const place = String(error?.stack ?? "").trim().split("\n")[0];
      host.log("error", `${error} ${place}`.trim());
      throw error;
    }
  };
}

function lifecycleOf(policy) {
  return {
    configure(config, names) {
      try {
        policy.configure(config, names);
      } catch (error) {
        throw String(error); // a text is why the configuration is refused; anything else would be a trap
      }
    },
  };
}

/** `policy` has configure(config, names) and partition(subject, request): a placement a site. */
export function residency(policy) {
  return {
    lifecycle: lifecycleOf(policy),
    residencyPolicy: {
      partition: told(({ purpose, dataJurisdiction, dataClass, fromSite }, request) => {
        const subject = {
          purpose,
          dataJurisdiction: fromHost(dataJurisdiction),
          dataClass: fromHost(dataClass),
          fromSite: fromSite === null ? null : fromHost(fromSite),
        };
        return policy.partition(subject, requestOf(request));
      }),
    },
  };
}

const COST_PARTS = ["totalUs", "queueUs", "prefillUs", "transferUs", "decodeUs", "cacheBenefitUs"];

/** `policy` has configure(config, names) and estimate(request, route): an object with totalUs and its parts. */
export function cost(policy) {
  return {
    lifecycle: lifecycleOf(policy),
    costPolicy: {
      estimate: told((request, stride, routes) => {
        const view = requestOf(request);
        const costs = [];
        for (const route of rows(Route, stride, routes)) {
          const row = policy.estimate(view, route);
          for (const part of COST_PARTS) costs.push(toHost(row[part] ?? 0));
        }
        return costs;
      }),
    },
  };
}

/** `policy` has configure(config, names) and decide(request, candidates), each candidate a { route, cost }. */
export function routing(policy) {
  return {
    lifecycle: lifecycleOf(policy),
    routingPolicy: {
      decide: told((request, stride, routes, costStride, costs) => {
        const priced = rows(Cost, costStride, costs);
        const nothing = new Cost([], 0, 0);
        const candidates = rows(Route, stride, routes).map((route, index) => {
          return { route, cost: priced[index] ?? nothing };
        });
        return policy.decide(requestOf(request), candidates);
      }),
    },
  };
}

function eventOf({ tag, val }) {
  switch (tag) {
    case "model-updated":
      return { tag, val: { ...val, model: fromHost(val.model) } };
    case "capacity-pressure": {
      const { site, usedMib, limitMib } = val;
      return { tag, val: { site: fromHost(site), usedMib: fromHost(usedMib), limitMib: fromHost(limitMib) } };
    }
    default:
      return { tag, val };
  }
}

function directiveOf({ tag, val }) {
  switch (tag) {
    case "below-version":
      return { tag, val: { ...val, model: toHost(val.model) } };
    case "drop-group":
    case "free-mib":
      return { tag, val: toHost(val) };
    default:
      return { tag, val };
  }
}

/** `policy` has configure(config, names) and react(event, groups): a list of directives. */
export function invalidation(policy) {
  return {
    lifecycle: lifecycleOf(policy),
    invalidationPolicy: {
      react: told((event, stride, groups) =>
        policy.react(eventOf(event), rows(Group, stride, groups)).map(directiveOf),
      ),
    },
  };
}
