const STATES = { "in rotation": "green", "gone, and nobody knows": "vermilion", "being replaced": "orange" };
const KINDS = ["teal", "magenta", "brown", "olive"];
const PLAYS_FOR = 16000;
const RADIUS = 5, PITCH = 13;

function render({ model, el }) {
  const runs = model.get("runs"), { start, from, to } = model.get("look");
  const format = (now) => `${secondsText(Math.abs(now))} ${now < 0 ? "before" : "after"} the fault`;
  return film(el, {
    label: "Service player", start, from, to, playsFor: PLAYS_FOR, format,
    scenes: runs.map((run) => {
      // A recording that is over stays as it was at its end.
      const end = Math.max(...run.stretches.map(([, , , , until]) => until)) - 1e-6, at = (now) => Math.min(now, end);
      return { name: run.what, status: (now) => status(run, at(now)), picture: (now, width) => stage(run, at(now), width, format(at(now)), from, to) };
    }),
    note: html("span", {}, "A dot is a request: ",
      ...runs[0].methods.flatMap((name, i) => [html("span", { class: "zx-swatch", style: `background:var(--${KINDS[i % KINDS.length]});border-radius:50%;width:11px;height:11px;margin:0 2px` }), ` ${name}; `]),
      "hollow, its replica is gone and nobody knows yet. The strips show each place over the whole time; dashed: the fault."),
  });
}

const within = (from, to, now) => from <= now && (to === null || now < to);
const stretchesAt = (run, now) => run.stretches.filter(([, , , from, to]) => within(from, to, now));

/** What is where at `now`, in a sentence. A replica that is gone is in rotation as long as nobody knows. */
function status(run, now) {
  const states = stretchesAt(run, now).map(([, state]) => state), gone = states.filter((state) => state === "gone, and nobody knows").length;
  const ready = states.filter((state) => state === "in rotation").length + gone;
  const busy = run.legs.filter(([, sent, , left]) => within(sent, left, now)).length;
  const ended = run.legs.filter(([, , , left]) => left !== null && left <= now), lost = ended.filter((leg) => leg[4]).length;
  return `${ready} of ${run.places} replicas in rotation${gone ? `, ${gone} of them gone, and nobody knows` : ""}; ${busy} requests not answered yet, ${ended.length - lost} answered${lost ? `, ${lost} cut off with their replica` : ""}.`;
}

/** A lane for the requests of each place, and below them the states of each place over the whole time. */
function stage(run, now, width, when, from, to) {
  const lane = 26 + run.slots * PITCH, strips = run.places * (lane + 8) + 12, height = strips + run.places * 12 + 2;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${run.what}, ${when}: ${status(run, now)}` });
  for (const [place, state, replica] of stretchesAt(run, now)) {
    const y = place * (lane + 8) + 1, colour = STATES[state];
    picture.append(
      svg("rect", { x: 1, y, width: width - 2, height: lane, rx: 8, style: `fill:var(--${colour});fill-opacity:${state === "in rotation" ? 0.1 : 0.2};stroke:var(--${colour});stroke-width:1.5` }),
      svg("text", { x: width / 2, y: y + 14, "text-anchor": "middle", "font-size": 11 }, state === "in rotation" ? replica : state === "being replaced" ? "starting" : `${replica}: gone`));
  }
  for (const [kind, sent, place, until, lost, slot] of run.legs.filter(([, sent, , left]) => within(sent, left, now))) {
    // What is lost stands still from the moment of the fault on.
    const share = lost ? Math.min(Math.max((Math.min(now, 0) - sent) / run.usual, 0.2), 0.9) : (now - sent) / ((until ?? to) - sent);
    picture.append(svg("circle", {
      cx: (8 + RADIUS + (width - 16 - 2 * RADIUS) * share).toFixed(1), cy: (place * (lane + 8) + 21 + PITCH * (slot + 0.5)).toFixed(1), r: RADIUS,
      style: `fill:var(--${KINDS[kind % KINDS.length]});${lost && now >= 0 ? "fill-opacity:0.2;stroke:currentColor;stroke-width:1.5" : ""}` }));
  }

  const x = (time) => (width * (time - from)) / (to - from);
  for (const [place, state, , begin, end] of run.stretches) {
    picture.append(svg("rect", { x: x(begin).toFixed(1), y: strips + 12 * place, width: Math.max(x(end) - x(begin), 0.5).toFixed(1), height: 8, style: `fill:var(--${STATES[state]})` }));
  }
  picture.append(svg("line", { x1: x(0), x2: x(0), y1: strips - 5, y2: height, style: "stroke:currentColor;stroke-dasharray:3 2" }));
  picture.append(svg("line", { x1: x(now), x2: x(now), y1: strips - 5, y2: height, class: "zx-end" }));
  return picture;
}

export default { render };
