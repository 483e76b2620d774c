// None of them is the colour of a role.
const VERSIONS = ["olive", "teal", "brown", "magenta"];
const PLAYS_FOR = 14000;
const RADIUS = 10, PITCH = 25;

function render({ model, el }) {
  const runs = model.get("runs"), { unit, start, plays } = model.get("look");
  return film(el, {
    label: "Loop player", start, plays, to: Math.max(...runs.map((run) => run.seconds)), playsFor: PLAYS_FOR,
    scenes: runs.map((run) => ({ name: run.name, status: (now) => status(run, now), picture: (now, width) => stage(run, now, width) })),
    note: `A dot is ${unit}. Its number and colour are the version of the weights that wrote it.`,
  });
}

const trained = (run, now) => run.dots.filter(([, , , , , done]) => done !== null && done <= now).length;

/** What a run has done until `now`, in a sentence. */
function status(run, now) {
  const lags = run.dots.filter(([, , , , taken]) => taken !== null && taken <= now).map(([version, , , , , , step]) => step - version);
  const most = Math.max(...lags), oldest = lags.length ? `, ${most} ${most === 1 ? "version" : "versions"} old at most` : "";
  return `${trained(run, now)} of ${run.dots.length} groups trained on${oldest}${now >= run.seconds ? `; done after ${secondsText(run.seconds)}` : ""}.`;
}

/** Where everything is at `now`: dots in generators, replay buffer or trainer, and weights on their way back. */
function stage(run, now, width) {
  const lanes = run.generators, gap = width < 420 ? 8 : 14, top = 24, side = Math.round((width - 2 * gap) / 3);
  const rows = Math.max(lanes, Math.ceil(run.most / Math.max(Math.floor((side - 8) / PITCH), 1))), tall = 16 + rows * PITCH, track = top + tall + 22;
  const zones = [[lanes === 1 ? "generator" : "generators", "blue", 0], ["replay buffer", "sky", side + gap], ["trainer", "vermilion", 2 * (side + gap)]];
  const within = ([from, to]) => from <= now && now < to;
  const training = run.steps.find(within), moving = run.weights.filter(within);
  const version = run.steps.filter(([, to]) => to <= now).length;
  const busy = [run.dots.some(([, , from, to]) => within([from, to])), false, Boolean(training)];
  const picture = svg("svg", { viewBox: `0 0 ${width} ${track + 22}`, height: track + 22, role: "img", "aria-label": `${run.name} at ${secondsText(now)}: ${status(run, now)}` });
  zones.forEach(([name, colour, x], i) => picture.append(
    svg("text", { x: x + side / 2, y: 15, "text-anchor": "middle", "font-weight": 600 }, width < 420 && i === 1 ? "buffer" : name),
    svg("rect", { x: x + 1, y: top, width: side - 2, height: tall, rx: 8, style: `fill:var(--${colour});fill-opacity:${busy[i] ? 0.2 : 0.05};stroke:var(--${colour});stroke-width:${busy[i] ? 2.5 : 1}` })));

  const [left, , right] = zones.map(([, , x]) => x + side / 2);
  picture.append(
    svg("path", { class: "zx-grid", d: `M${right} ${top + tall}V${track}H${left}V${top + tall}`, style: "fill:none" }),
    svg("text", { x: width / 2, y: track + 17, "text-anchor": "middle" }, `weights, version ${version}`));
  for (const [from, to] of moving) {
    const x = right + ((left - right) * (now - from)) / (to - from);
    picture.append(svg("rect", { x: x - 8, y: track - 8, width: 16, height: 16, rx: 3, style: "fill:var(--orange)" }));
  }

  const dot = (version, x, y) => picture.append(
    svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: RADIUS, style: `fill:var(--${VERSIONS[version % VERSIONS.length]});fill-opacity:0.3;stroke:var(--${VERSIONS[version % VERSIONS.length]});stroke-width:1.5` }),
    svg("text", { x: x.toFixed(1), y: (y + 4).toFixed(1), "text-anchor": "middle", "font-size": 11 }, String(version)));
  const across = Math.max(Math.floor((side - 8) / PITCH), 1);
  const placed = (zone, waiting) => waiting.forEach(([version], i) => dot(version, zones[zone][2] + 4 + PITCH * ((i % across) + 0.5), top + 8 + PITCH * (Math.floor(i / across) + 0.5)));
  for (const [version, lane, from, to] of run.dots.filter(([, , from, to]) => within([from, to]))) {
    dot(version, RADIUS + 4 + ((side - 2 * RADIUS - 8) * (now - from)) / (to - from), top + 8 + PITCH * (lane + 0.5));
  }
  placed(1, run.dots.filter(([, , , to, taken]) => to <= now && (taken === null || now < taken)));
  placed(2, run.dots.filter(([, , , , taken, done]) => taken !== null && within([taken, done])));
  return picture;
}

export default { render };
