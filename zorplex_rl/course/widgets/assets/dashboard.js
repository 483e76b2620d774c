const COLOURS = ["blue", "vermilion", "green", "purple"], DASHES = ["", "6 3", "2 3", "8 3 2 3"];

function render({ model, el }) {
  const { panels, total_steps, title } = model.get("look");
  const legend = html("ul", { class: "zx-legend" }), status = html("p", { class: "zx-quiet" }), voice = announcer();
  const charts = panels.map(() => html("div")), names = panels.map(([, name]) => html("p", { class: "zx-heading", style: "margin:0;font-size:14px" }, name));
  el.replaceChildren(html("section", { class: "zx zx-stack", style: "gap:10px", "aria-label": title },
    html("p", { class: "zx-heading", style: "margin:0" }, title), legend,
    html("div", { class: "zx-columns", style: "grid-template-columns:repeat(auto-fit,minmax(min(100%,200px),1fr));gap:14px 26px" }, ...panels.map((_, i) => html("div", {}, names[i], charts[i]))),
    status, voice.root));
  const drawings = panels.map(([key, name], i) => drawnToWidth(charts[i], (width) => charts[i].replaceChildren(panel(name, runsOf(key), total_steps, width))));
  const runsOf = (key) => model.get("series").filter(([metric]) => metric === key);
  let said = -1;
  function show() {
    const series = model.get("series"), runs = [...new Set(series.map(([, run]) => run))];
    legend.replaceChildren(...runs.map((run, i) => html("li", {}, swatch(i), run)));
    panels.forEach(([key, name], i) => {
      // The last number of every line, each beside the line's colour: coloured text would be too faint to read.
      const last = runsOf(key).flatMap(([, , points], at) => ["  ", swatch(at), " ", html("strong", { "data-value": points.at(-1)[1] }, short(points.at(-1)[1]))]);
      names[i].replaceChildren(name, ...last);
    });
    const step = Math.max(0, ...series.map(([, , points]) => points.at(-1)[0]));
    status.textContent = series.length ? `step ${step} of ${total_steps}` : "waiting for the first step";
    if (Math.floor((4 * step) / total_steps) !== said) voice.say(status.textContent);
    said = Math.floor((4 * step) / total_steps);
    drawings.forEach((drawing) => drawing.redraw());
  }
  model.on("change:series", show);
  show();
  return () => { drawings.forEach((drawing) => drawing.stop()); model.off("change:series", show); };
}

const swatch = (i) => html("span", { class: "zx-swatch", style: `background:var(--${COLOURS[i % COLOURS.length]})` });

const short = (value) => String(Number(value.toPrecision(2)));

function panel(name, runs, total, width) {
  const left = 34, right = 6, top = 6, bottom = 18, height = 120;
  const values = runs.flatMap(([, , points]) => points.map(([, value]) => value));
  const low = Math.min(0, ...values), high = Math.max(low + 1e-9, ...values);
  const x = (step) => left + ((width - left - right) * step) / Math.max(total, 1), y = (value) => top + (height - top - bottom) * (1 - (value - low) / (high - low));
  const said = runs.map(([, run, points]) => `${run}: ${short(points[0][1])} at step ${points[0][0]}, ${short(points.at(-1)[1])} at step ${points.at(-1)[0]}`);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${name} over training steps. ${said.join(". ") || "No point yet"}.` });
  for (const tick of values.length ? [low, high] : []) {
    picture.append(svg("line", { class: "zx-grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), svg("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const tick of [0, total]) picture.append(svg("text", { x: x(tick), y: height - 4, "text-anchor": tick ? "end" : "start" }, String(tick)));
  runs.forEach(([, , points], i) => picture.append(svg("polyline", { points: points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" "), "stroke-dasharray": DASHES[i % DASHES.length], style: `fill:none;stroke:var(--${COLOURS[i % COLOURS.length]});stroke-width:1.8;stroke-linejoin:round` })));
  return picture;
}

export default { render };
