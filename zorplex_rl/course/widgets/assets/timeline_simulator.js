const SLIDERS = {
  generation_seconds: ["Sample a group", secondsText],
  variation: ["Its variation", (value) => (value === 0 ? "none" : `± ${Math.round(100 * value)}%`)],
  training_seconds: ["Training step", secondsText],
  sync_seconds: ["Weight sync", secondsText],
  generators: ["Generators", String],
  max_lag: ["Max lag", (value) => `${value} ${value === 1 ? "version" : "versions"}`],
};
const LIMITS = { trainer: "trainer", generators: "generators", weights: "weights", round_trips: "send, write, train in turn (lag)" };
const BAR_UNITS = 1000;

function render({ model, el }) {
  const { axes, latencies, scenarios: listed, scenario, reasons } = model.get("controls"), scenarios = new Map(listed);
  let params = model.get("params"), result = null;

  const sliders = Object.fromEntries(Object.entries(SLIDERS).map(([key, [name, format]]) => [key, slider(name, axes[key], format, moved)]));
  const chosen = choices("Scenario", [...scenarios.keys()], (name) => { place(scenarios.get(name)); ask(params); });
  const reason = html("p", { class: "zx-quiet" });
  const figures = html("dl", { class: "zx-figures" }), said = html("p");
  const chart = html("div"), staleness = html("div"), bounds = html("div"), voice = announcer();
  const swatch = (colour, odd) => html("span", { class: "zx-swatch", style: `background:var(--${colour});opacity:${odd ? 0.55 : 1}` });
  const legend = html("ul", { class: "zx-legend" },
    html("li", {}, swatch("blue"), swatch("blue", true), "sampling a group"),
    html("li", {}, swatch("vermilion"), swatch("vermilion", true), "training step"),
    html("li", {}, swatch("orange"), swatch("orange", true), "weights on their way"),
    html("li", { class: "zx-quiet" }, "The shade changes with every version of the weights."));
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": "Timeline simulator" },
    chosen.root,
    html("div", { class: "zx-sliders zx-by-three" }, ...Object.values(sliders).map(({ root }) => root)),
    reason,
    figures,
    said,
    html("div", { class: "zx-stack", style: "gap:10px" }, legend, chart),
    html("div", { class: "zx-columns" }, bounds, staleness),
    voice.root));

  function moved() {
    for (const [key, { input, value }] of Object.entries(sliders)) if (!input.hidden) params = { ...params, [key]: value };
    if (!params.fixed) chosen.set(null);
    ask(params);
  }

  function place(position) {
    params = { ...position };
    reason.textContent = new Map(reasons).get(position.fixed) ?? "";
    reason.hidden = !reason.textContent;
    for (const [key, control] of Object.entries(sliders)) {
      if (position.fixed && latencies.includes(key)) control.fix(position[key]);
      else control.set(position[key]);
    }
  }

  function show(answer) {
    result = answer;
    const { sync, async } = answer;
    const figure = (name, value, text, note) => html("div", {}, html("dt", {}, name), html("dd", { "data-value": value }, text), html("dd", { class: "zx-note" }, note));
    const limit = (run) => `at best ${secondsText(run.bounds[4])}: ${LIMITS[run.binding]}`;
    figures.replaceChildren(
      figure("Synchronous", sync.seconds, secondsText(sync.seconds), limit(sync)),
      figure("Asynchronous", async.seconds, secondsText(async.seconds), limit(async)),
      figure("Speed-up", async.speed_up, `${async.speed_up.toFixed(2)} ×`, "on the same latencies"));
    voice.say(`Synchronous ${secondsText(sync.seconds)}, asynchronous ${secondsText(async.seconds)}, speed-up ${async.speed_up.toFixed(2)}.`);
    const wins = async.speed_up >= 1.02 ? `${async.speed_up.toFixed(2)} times as fast` : async.speed_up > 0.98 ? "just as fast" : "slower";
    said.textContent = `Side by side is ${wins}. What limits it now: ${LIMITS[async.binding]}.`;
    bounds.replaceChildren(boundsTable(sync, async));
    staleness.replaceChildren(...stalenessBars(async.staleness));
    drawing.redraw();
  }

  const drawing = drawnToWidth(chart, (width) => { if (result) chart.replaceChildren(timelines(result, width)); });
  chosen.set(scenario);
  place(params);
  const ask = questions(model, el.firstElementChild, (table, { fixed, ...rest }) => {
    const { sync, async } = table[fixed ?? "grid"];
    return { sync: lookUp(sync, rest), async: lookUp(async, rest) };
  }, show);
  return drawing.stop;
}

/** Both runs on one axis of time: a row for the trainer, the weights and every generator. */
function timelines({ sync, async }, width) {
  const runs = [["Synchronous", sync], ["Asynchronous", async]];
  const rows = sync.bars.length, narrow = width < 560;
  const left = narrow ? 58 : 92, right = 42, thick = rows > 6 ? 13 : 18, pitch = thick + (rows > 6 ? 3 : 5), head = 26, between = 18;
  const panel = head + rows * pitch, height = 2 * panel + between + 24;
  const end = Math.max(sync.seconds, async.seconds) || 1, across = width - left - right, x = (time) => left + (across * time) / end;
  const name = (row) => (row === 0 ? "trainer" : row === 1 ? "weights" : `${narrow ? "gen" : "generator"} ${row - 2}`);
  const said = runs.map(([mode, run]) => `${mode}: ${secondsText(run.seconds)}; busy: ${run.busy.map((share, row) => `${name(row)} ${share}%`).join(", ")}`);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Two timelines on one axis. ${said.join(". ")}.` });

  for (const tick of ticks(end, narrow ? 4 : 8)) {
    picture.append(
      svg("line", { class: "zx-grid", x1: x(tick), x2: x(tick), y1: head - 4, y2: height - 20 }),
      svg("text", { x: x(tick), y: height - 4, "text-anchor": "middle" }, tick === 0 ? "0" : `${tick} s`));
  }

  runs.forEach(([mode, run], index) => {
    const top = index * (panel + between);
    picture.append(svg("text", { x: 0, y: top + 14, "font-weight": 600, "font-size": 14 }, `${mode}, ${secondsText(run.seconds)}`));
    if (index === 0) picture.append(svg("text", { x: width, y: top + 14, "text-anchor": "end" }, "busy"));
    const unit = (across * run.seconds) / end / BAR_UNITS;
    run.bars.forEach((bars, row) => {
      const y = top + head + row * pitch, middle = y + thick / 2 + 4;
      picture.append(
        svg("text", { x: left - 8, y: middle, "text-anchor": "end" }, name(row)),
        svg("rect", { class: "zx-row", x: left, y, width: unit * BAR_UNITS, height: thick }),
        svg("text", { x: width, y: middle, "text-anchor": "end" }, `${run.busy[row]}%`));
      const kind = row === 0 ? "train" : row === 1 ? "weights" : "generate";
      for (let i = 0, reached = 0; i < bars.length; i += 3) {
        const start = reached + bars[i], long = bars[i + 1] * unit;
        reached = start + bars[i + 1];
        // A hair's breadth between two bars, where they are wide enough to lose it.
        picture.append(svg("rect", {
          class: `zx-fill-${kind}${bars[i + 2] ? " zx-odd" : ""}`, rx: long > 6 ? 2 : 0,
          x: (left + start * unit).toFixed(2), y, width: Math.max(long - (long > 4 ? 1 : 0), 0.6).toFixed(2), height: thick,
        }));
      }
    });
    picture.append(svg("line", { class: "zx-end", x1: x(run.seconds), x2: x(run.seconds), y1: top + head - 3, y2: top + panel }));
  });
  return picture;
}

/** Why neither run can be faster, each limit on its own; what limits most is marked. */
function boundsTable(sync, async) {
  const cell = (run, limit, row) => html("td", {}, html("span", limit === run.binding ? { class: "zx-marked" } : {}, secondsText(run.bounds[row])));
  const rows = Object.entries(LIMITS).map(([limit, name], row) => html("tr", {}, html("th", { scope: "row" }, name), cell(sync, limit, row), cell(async, limit, row)));
  const line = (name, of) => html("tr", {}, html("th", { scope: "row" }, name), html("td", {}, secondsText(of(sync))), html("td", {}, secondsText(of(async))));
  return html("table", { class: "zx-table" },
    html("caption", {}, "No run can take less than this"),
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "because of the"), html("th", { scope: "col" }, "sync"), html("th", { scope: "col" }, "async"))),
    html("tbody", {}, ...rows),
    html("tfoot", {}, line("Simulated", (run) => run.seconds)));
}

/** How old the weights were that had sampled what was trained on. */
function stalenessBars(counts) {
  const most = Math.max(...counts), total = counts.reduce((sum, count) => sum + count, 0);
  const rows = counts.map((count, lag) => html("div", {},
    html("dt", {}, `lag ${lag}`),
    html("dd", { class: "zx-bar", style: `width:${(100 * count) / most}%`, "aria-hidden": true }),
    html("dd", {}, `${count} of ${total}`)));
  return [html("p", { class: "zx-heading" }, "Lag of what async trained on"), html("dl", { class: "zx-bars" }, ...rows)];
}

export default { render };
