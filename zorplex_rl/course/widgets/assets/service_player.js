const STATES = { "in rotation": "green", "failed, not detected yet": "vermilion", "being replaced": "orange" };
const KINDS = ["teal", "magenta", "brown", "olive"];
const PLAYS_FOR = 16000;
const RADIUS = 5, PITCH = 13;

function render({ model, el }) {
  const run = model.get("run"), { start } = model.get("look");
  const format = (now) => `${secondsText(Math.abs(now))} ${now < 0 ? "before" : "after"} ${run.what}`;
  return film(el, {
    label: "Service player", start, from: run.from, to: run.to, playsFor: PLAYS_FOR, format,
    scenes: [{ name: run.name, status: (now) => status(run, now), picture: (now, width) => stage(run, now, width, format(now)) }],
    note: html("span", {}, "A dot is a request: ",
      ...run.methods.flatMap((name, i) => [html("span", { class: "zx-swatch", style: `background:var(--${KINDS[i % KINDS.length]});border-radius:50%;width:11px;height:11px;margin:0 2px` }), ` ${name}; `]),
      "hollow, its replica has failed and nobody knows yet. The strips show each place over the whole time; dashed: the fault."),
  });
}

const within = (from, to, now) => from <= now && (to === null || now < to);
const stretchesAt = (run, now) => run.stretches.filter(([, , , from, to]) => within(from, to, now) || (now >= run.to && to === run.to));

/** What is where at `now`, in a sentence. */
function status(run, now) {
  const ready = stretchesAt(run, now).filter(([, state]) => state === "in rotation").length;
  const waiting = run.legs.filter(([, from, sent]) => within(from, sent, now)).length;
  const busy = run.legs.filter(([, , sent, , left]) => sent !== null && within(sent, left, now)).length;
  const ended = run.legs.filter(([, , , , left]) => left !== null && left <= now), lost = ended.filter((leg) => leg[5]).length;
  return `${ready} of ${run.places} replicas in rotation; ${waiting} requests wait, ${busy} are under way, ${ended.length - lost} answered${lost ? `, ${lost} lost with their replica` : ""}.`;
}

/** The queue at the left, the replicas at the right, and below them the states of each place over the whole time. */
function stage(run, now, width, when) {
  const small = width < 480, gap = small ? 26 : 60, side = Math.round((width - gap) * 0.3), left = side + gap, wide = width - left;
  const lane = 26 + run.slots * PITCH, tall = run.places * (lane + 8) - 8, top = 24, strips = top + tall + 18, height = strips + run.places * 12 + 2;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${run.name}, ${when}: ${status(run, now)}` });
  picture.append(
    svg("text", { x: side / 2, y: 15, "text-anchor": "middle", "font-weight": 600 }, "queue"),
    svg("text", { x: left + wide / 2, y: 15, "text-anchor": "middle", "font-weight": 600 }, "replicas"),
    svg("rect", { x: 1, y: top, width: side - 2, height: tall, rx: 8, class: "zx-row" }));
  for (const [place, state, replica] of stretchesAt(run, now)) {
    const y = top + place * (lane + 8), colour = STATES[state];
    picture.append(
      svg("rect", { x: left, y, width: wide - 1, height: lane, rx: 8, style: `fill:var(--${colour});fill-opacity:${state === "in rotation" ? 0.1 : 0.2};stroke:var(--${colour});stroke-width:1.5` }),
      svg("text", { x: left + wide / 2, y: y + 14, "text-anchor": "middle", "font-size": 11 }, state === "in rotation" ? replica : state === "being replaced" ? "starting" : `${replica}: gone`));
  }

  const dot = (kind, x, y, lost) => picture.append(svg("circle", {
    cx: x.toFixed(1), cy: y.toFixed(1), r: RADIUS,
    style: `fill:var(--${KINDS[kind % KINDS.length]});${lost ? "fill-opacity:0.2;stroke:currentColor;stroke-width:1.5" : ""}` }));
  const across = Math.max(Math.floor((side - 8) / PITCH), 1);
  run.legs.filter(([, from, sent]) => within(from, sent, now)).forEach(([kind], i) => {
    // The oldest stands at the door, at the right.
    dot(kind, side - 8 - PITCH * ((i % across) + 0.5), top + 6 + PITCH * (Math.floor(i / across) + 0.5), false);
  });
  for (let place = 0; place < run.places; place += 1) {
    const y = top + place * (lane + 8);
    run.legs.filter(([, , sent, at, until]) => at === place && sent !== null && within(sent, until, now)).forEach((leg, i) => {
      const [kind, , sent, , until, lost] = leg;
      // What is lost stands still from the moment of the fault on.
      const share = lost ? Math.min(Math.max((Math.min(now, 0) - sent) / run.usual, 0.2), 0.9) : (now - sent) / ((until ?? run.to) - sent);
      dot(kind, side + (width - side - RADIUS - 6) * share, y + 20 + PITCH * ((leg[6] % run.slots) + 0.5), lost && now >= 0);
    });
  }

  const x = (time) => (width * (time - run.from)) / (run.to - run.from);
  for (const [place, state, , from, to] of run.stretches) {
    picture.append(svg("rect", { x: x(from).toFixed(1), y: strips + 12 * place, width: Math.max(x(to) - x(from), 0.5).toFixed(1), height: 8, style: `fill:var(--${STATES[state]})` }));
  }
  picture.append(svg("line", { x1: x(0), x2: x(0), y1: strips - 5, y2: height, style: "stroke:currentColor;stroke-dasharray:3 2" }));
  picture.append(svg("line", { x1: x(now), x2: x(now), y1: strips - 5, y2: height, class: "zx-end" }));
  return picture;
}

export default { render };
