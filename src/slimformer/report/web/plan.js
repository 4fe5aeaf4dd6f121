// Plans at any budget, from the choices in the report. The arithmetic is that of plan/allocate.py and plan/choice.py,
// operation by operation, so that the same doubles give the same sizes; whether they do is checked when the page opens.

// Sites with their sizes and prices; index is the place in front.sites.
function laddersOf(front) {
  return front.sites.map((site, index) => ({ ...site, ...front.tables[site.table], index }));
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const cheapest = (ladders) => sum(ladders.map((ladder) => ladder.price[0]));
const slope = (ladder, a, b) => (ladder.harm[b] - ladder.harm[a]) / (ladder.price[b] - ladder.price[a]);

// Segments of the lower convex hull of harm over price: fall of harm for each unit of price, ladder, rung, price.
function hullSteps(ladder) {
  const hull = [];
  for (let i = 0; i < ladder.price.length; i++) {
    while (hull.length > 1 && slope(ladder, hull.at(-2), hull.at(-1)) >= slope(ladder, hull.at(-1), i)) hull.pop();
    hull.push(i);
  }
  return hull.slice(1).map((b, n) => {
    const a = hull[n];
    return { fall: -slope(ladder, a, b), ladder, rung: b, price: ladder.price[b] - ladder.price[a] };
  });
}

// Buy segments by falling harm for each unit of price until the budget is spent, then fill the rest. Rungs by index.
function greedy(ladders, budget) {
  const at = new Map(ladders.map((ladder) => [ladder.index, 0]));
  let left = budget - cheapest(ladders);
  const steps = ladders.flatMap(hullSteps).sort((one, other) => other.fall - one.fall); // sorting is stable
  for (const step of steps) {
    if (step.price > left) break;
    at.set(step.ladder.index, step.rung);
    left -= step.price;
  }
  return topUp(ladders, at, left);
}

// Spend what is left one rung at a time, each where it removes most harm for its price; of equals the last name.
function topUp(ladders, at, left) {
  for (;;) {
    let best = null;
    for (const ladder of ladders) {
      const i = at.get(ladder.index);
      if (i + 1 >= ladder.price.length) continue;
      const price = ladder.price[i + 1] - ladder.price[i];
      if (price > left) continue;
      const gain = (ladder.harm[i] - ladder.harm[i + 1]) / price;
      if (!best || gain > best.gain || (gain === best.gain && ladder.site > best.ladder.site)) {
        best = { gain, ladder, price };
      }
    }
    if (!best) return at;
    at.set(best.ladder.index, at.get(best.ladder.index) + 1);
    left -= best.price;
  }
}

// Buy a rung that is dearer than what is left, and give back rungs elsewhere for it, as long as total harm falls.
function exchange(ladders, at, budget) {
  let left = budget - sum(ladders.map((ladder) => ladder.price[at.get(ladder.index)]));
  for (;;) {
    let best = null;
    for (const ladder of ladders) {
      const found = purchase(ladders, at, ladder, left);
      if (found && found.harm < 0 && (!best || found.harm < best.harm)) best = found;
    }
    if (!best) return at;
    ({ at, left } = best);
  }
}

// The ladders in use: those of the way in which a part is cut, of the first where it is not cut at all.
function taken(fixed, parts, at) {
  const isCut = (ladder) => at.has(ladder.index) && at.get(ladder.index) < ladder.price.length - 1;
  const ways = parts.map((part) => part.find((way) => way.some(isCut)) || part[0]);
  for (const ladder of ways.flat()) if (!at.has(ladder.index)) at.set(ladder.index, ladder.price.length - 1);
  return [...fixed, ...ways.flat()];
}

// The next rung of one ladder, paid by the rungs elsewhere whose loss is least for what they pay.
function purchase(ladders, before, bought, rest) {
  const i = before.get(bought.index);
  if (i + 1 >= bought.price.length) return null;
  let harm = bought.harm[i + 1] - bought.harm[i], left = rest - (bought.price[i + 1] - bought.price[i]);
  const at = new Map(before).set(bought.index, i + 1);
  while (left < 0) {
    let best = null;
    for (const ladder of ladders) {
      const j = at.get(ladder.index);
      if (ladder.index === bought.index || !j) continue;
      const loss = ladder.harm[j - 1] - ladder.harm[j], price = ladder.price[j] - ladder.price[j - 1];
      const rate = loss / Math.min(price, -left); // more than is owed buys nothing
      if (!best || rate < best.rate) best = { rate, ladder, j, loss, price };
    }
    if (!best) return null;
    harm += best.loss;
    left += best.price;
    at.set(best.ladder.index, best.j - 1);
  }
  return { harm, left, at };
}

// Least harm + λ price of a ladder, and the price there.
function atPrice(ladder, rate) {
  let best = Infinity, price = Infinity;
  for (let i = 0; i < ladder.price.length; i++) {
    const value = ladder.harm[i] + rate * ladder.price[i];
    if (value < best || (value === best && ladder.price[i] < price)) [best, price] = [value, ladder.price[i]];
  }
  return [best, price];
}

// For every part the way of least harm + λ price.
function waysAt(parts, rate) {
  return parts.map((part) => {
    const values = part.map((way) => sum(way.map((ladder) => atPrice(ladder, rate)[0])));
    return part[values.indexOf(Math.min(...values))];
  });
}

// The least λ whose choices keep within the budget.
function rateFor(fixed, parts, budget, steps) {
  let low = 0, high = 1e-30 + Math.max(...[...fixed, ...parts.flat(2)].map((ladder) => ladder.harm[0]));
  for (let n = 0; n < steps; n++) {
    const middle = (low + high) / 2;
    const spent = sum([...fixed, ...waysAt(parts, middle).flat()].map((ladder) => atPrice(ladder, middle)[1]));
    [low, high] = spent <= budget ? [low, middle] : [middle, high];
  }
  return high;
}

// Attention by heads or by ranks, block by block: the ways found near λ and each way throughout, the best of them.
function greedyWays(fixed, parts, budget, near, steps) {
  const rate = rateFor(fixed, parts, budget, steps);
  const candidates = near.map((factor) => waysAt(parts, factor * rate));
  const most = Math.max(0, ...parts.map((part) => part.length));
  for (let n = 0; n < most; n++) candidates.push(parts.map((part) => part[Math.min(n, part.length - 1)]));
  const seen = new Set();
  let best = null;
  for (const ways of candidates) {
    const ladders = [...fixed, ...ways.flat()];
    const key = ladders.map((ladder) => ladder.index).join();
    if (seen.has(key) || cheapest(ladders) > budget) continue;
    seen.add(key);
    const at = greedy(ladders, budget);
    const harm = sum(ladders.map((ladder) => ladder.harm[at.get(ladder.index)]));
    if (!best || harm < best.harm) best = { harm, at };
  }
  return best && best.at;
}

// One size for the heads of all blocks and one for their neurons, of least harm.
function plain(ladders, budget) {
  const [heads, neurons] = ["attn.heads", "ffn.hidden"].map((kind) => ladders.filter((each) => each.kind === kind));
  const all = (group, i, field) => sum(group.map((ladder) => ladder[field][i]));
  let best = null;
  for (let i = 0; i < heads[0].price.length; i++) {
    const left = budget - all(heads, i, "price");
    let j = neurons[0].price.length - 1;
    while (j >= 0 && all(neurons, j, "price") > left) j--;
    if (j < 0) continue;
    const harm = all(heads, i, "harm") + all(neurons, j, "harm");
    if (!best || harm < best.harm) best = { harm, i, j };
  }
  const rungs = (each) => [each.index, each.kind === "attn.heads" ? best.i : best.j];
  return best && new Map(ladders.map(rungs));
}

// What is kept at every site for a fraction of the budget (see `kept`); null where there are ranks and none is cut.
// Null: no plan.
function planAt(front, ladders, fraction) {
  const budget = Math.floor(fraction * front.dense.price);
  const fixed = front.fixed.map((i) => ladders[i]);
  const parts = front.parts.map((part) => part.map((way) => way.map((i) => ladders[i])));
  let at;
  if (front.allocation === "plain") at = plain(fixed, budget);
  else if (front.allocation !== "greedy" || cheapest(fixed) > budget) return null;
  else at = parts.length ? greedyWays(fixed, parts, budget, front.near, front.steps) : greedy(fixed, budget);
  if (!at) return null;
  if (front.allocation === "greedy") at = exchange(taken(fixed, parts, at), at, budget);
  const keep = ladders.map((ladder) => (at.has(ladder.index) ? kept(ladder, at.get(ladder.index)) : ladder.of));
  const isRank = (ladder) => ladder.kind === "attn.qk" || ladder.kind === "attn.vo";
  // Without values no score is needed.
  const gone = new Set(ladders.filter((each) => each.kind === "attn.vo" && keep[each.index] === 0).map((each) => each.block));
  for (const each of ladders) if (each.kind === "attn.qk" && gone.has(each.block)) keep[each.index] = 0;
  const cut = new Set(ladders.filter((each) => isRank(each) && keep[each.index] < each.of).map((each) => each.block));
  return ladders.map((each) => (isRank(each) && !cut.has(each.block) ? null : keep[each.index]));
}

// What a plan costs and what it is expected to do: fractions kept, predicted divergence (null without probes).
function consequences(front, ladders, keep) {
  const ranked = new Set(ladders.filter((each, i) => each.kind.match(/\.(qk|vo)$/) && keep[i] !== null).map((e) => e.block));
  let macs = 0, params = 0, kl = ladders.some((each) => each.kl !== null) ? 0 : null;
  for (const ladder of ladders) {
    if (keep[ladder.index] === null) continue;
    const rung = rungOf(ladder, keep[ladder.index]);
    if (kl !== null) kl += ladder.kl === null ? 0 : scaled(ladder, "kl", rung);
    if (ladder.kind === "attn.heads" && ranked.has(ladder.block)) continue; // counted by its ranks
    macs += ladder.macs[rung];
    params += ladder.params[rung];
  }
  return { macs: macs / front.dense.macs, params: params / front.dense.params, kl };
}

// Have key/value heads gone whole on this rung, with more than one query each?
const goesWhole = (ladder, rung) => ladder.kind === "attn.heads" && ladder.groups[rung] < Math.min(ladder.units[rung], ladder.groups.at(-1));
// What is kept on a rung: units; with a linear path beside them "units+rank"; where key/value heads went whole "units/heads".
const kept = (ladder, rung) => (goesWhole(ladder, rung) ? `${ladder.units[rung]}/${ladder.groups[rung]}` : ladder.ranks && ladder.ranks[rung] ? `${ladder.units[rung]}+${ladder.ranks[rung]}` : ladder.units[rung]);
const rungOf = (ladder, keep) => ladder.units.findIndex((_, rung) => kept(ladder, rung) === keep);
const scaled = (ladder, field, rung) =>
  Array.isArray(ladder[field]) ? ladder[field][rung] : ladder[field] * ladder.harm[rung];

// A plan as the file that `slimformer apply` reads, field by field as Plan.to_json writes it.
function planFile(front, ladders, fraction, keep) {
  const { recipe, seq_len, format, ridge, absorb_mean, fingerprint, metric } = front.plan;
  const { macs, params, kl } = consequences(front, ladders, keep);
  const bySite = new Map(ladders.flatMap((ladder) => [ladder.site, ...(ladder.others ?? [])].map((site) => [site, ladder])));
  const edits = front.plan.edits.flatMap(({ site, method, of, groups }) => {
    const ladder = bySite.get(site);
    if (!ladder) return /\.(qk|vo)$/.test(site) ? [] : [{ site, method, keep: of, of, groups, rank: 0 }];
    if (keep[ladder.index] === null) return []; // ranks of attention that is not cut by rank
    const rung = rungOf(ladder, keep[ladder.index]);
    return [{ site, method, keep: ladder.units[rung], of, groups: ladder.groups[rung], rank: ladder.ranks ? ladder.ranks[rung] : 0 }];
  });
  const made = { slimformer_plan: 1, recipe, budget: fraction, macs, params, seq_len, format, ridge, absorb_mean, fingerprint, edits, by: front.by, metric, predicted_kl: kl };
  return JSON.stringify(made, null, 1);
}
